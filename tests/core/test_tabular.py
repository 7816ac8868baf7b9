"""Tables of text in every form."""

import csv
import io

import pytest

from fedjax_sim.core.tabular import FORMS, in_notebook, table

COLUMNS = [("a_b", ["x|y & 50 %", "<b>"]), ("loss", ["0.5 ± 0.1", "–"]), ("n", ["10", "9"])]


def test_text_is_aligned_and_notes_are_below():
    assert table(COLUMNS, notes=["said"]).split("\n") == [
        "a_b              loss   n",
        "──────────  ─────────  ──",
        "x|y & 50 %  0.5 ± 0.1  10",
        "<b>                 –   9",
        "",
        "said",
    ]


def test_markdown_has_no_bar_of_a_name():
    assert table(COLUMNS, "markdown").split("\n")[:3] == [
        "| a_b | loss | n |",
        "| --- | ---: | ---: |",
        r"| x\|y & 50 % | 0.5 ± 0.1 | 10 |",
    ]


def test_latex_says_what_it_means_by_its_signs():
    lines = table(COLUMNS, "latex", notes=["50 %\nmore"]).split("\n")
    assert lines[0] == r"\begin{tabular}{lrr}"
    assert lines[2] == r"a\_b & loss & n \\"
    assert lines[4] == r"x|y \& 50 \% & 0.5 $\pm$ 0.1 & 10 \\"
    assert lines[5] == r"$<$b$>$ & -- & 9 \\"
    assert lines[-3:] == [r"\end{tabular}", "% 50 %", "% more"]  # no line of a note is part of the table
    assert table([("m", ["\\"])], "latex").split("\n")[4] == r"\textbackslash{} \\"


def test_latex_has_minus_signs_and_greek_letters():
    columns = [("method", ["FedAvg, η = 0.02", "Ω-5"]), ("minus Λ", ["-0.5 ± 0.1", "3"])]
    lines = table(columns, "latex").split("\n")
    assert lines[2] == r"method & minus $\Lambda$ \\"
    assert lines[4] == r"FedAvg, $\eta$ = 0.02 & $-$0.5 $\pm$ 0.1 \\"
    assert lines[5] == r"$\Omega$-5 & 3 \\"


def test_csv_has_spreads_of_their_own_and_names_as_they_are():
    columns = [("method", ['a ± b, "c"', "–"]), *COLUMNS[1:]]
    rows = list(csv.reader(io.StringIO(table(columns, "csv", notes=["left out"]))))
    assert rows == [["method", "loss", "loss ±", "n"], ['a ± b, "c"', "0.5", "0.1", "10"], ["–", "", "", "9"]]


def test_html_is_escaped():
    found = table(COLUMNS, "html", notes=["<i>"])
    assert "<b>" not in found
    assert "&lt;b&gt;" in found
    assert "<small>&lt;i&gt;</small>" in found
    assert in_notebook("<script>", found).startswith("<p><code>&#x27;&lt;script&gt;")


def test_another_form_is_refused():
    with pytest.raises(ValueError, match="known: text, markdown, latex, csv, html"):
        table(COLUMNS, "pdf")
    assert all(table(COLUMNS, form) for form in FORMS)
