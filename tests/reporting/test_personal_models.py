"""The figure of shared, fine-tuned and personal models: what is drawn equals what was recorded."""

import numpy as np
import pytest

from fedjax_sim.reporting import distributions, personal_models
from tests.reporting.test_reporting import Run

NAN = np.nan
# Two seeds, two evaluations, four clients; the last has no test examples. The first evaluation is not to be read.
SHARED = np.array([[[0.0] * 4, [0.6, 0.2, 0.4, NAN]], [[0.0] * 4, [0.8, 0.4, 0.6, NAN]]])
PERSONAL = np.array([[[0.0] * 4, [0.5, 0.9, 0.7, NAN]], [[0.0] * 4, [0.7, 0.9, 0.9, NAN]]])
TUNED = np.array([[[0.0] * 4, [0.3, 0.1, 0.2, NAN]], [[0.0] * 4, [0.5, 0.3, 0.6, NAN]]])


def run(**more):
    return Run(np.array([0, 10]), {"loss": np.ones((2, 2)), "test_client_accuracy": SHARED} | more)


def lines(ax):
    return {line.get_label(): line.get_xydata() for line in ax.get_lines()}


def test_what_is_beside_each_other_is_of_the_same_client():
    ax = personal_models({"Ditto": run(personal_client_accuracy=PERSONAL, tuned_client_accuracy=TUNED)})
    drawn = lines(ax)
    assert list(drawn) == ["shared", "fine-tuned", "personal"]
    for label, recorded in (("shared", SHARED), ("fine-tuned", TUNED), ("personal", PERSONAL)):
        np.testing.assert_allclose(drawn[label][:, 0].round(), [1, 2, 3])
        np.testing.assert_allclose(drawn[label][:, 1], recorded[:, 1].mean(axis=0)[[1, 2, 0]])
    assert drawn["shared"][0, 0] < drawn["fine-tuned"][0, 0] < drawn["personal"][0, 0]
    ranges = [segment[:, 1].tolist() for segment in ax.collections[2].get_segments()]
    assert ranges == [[0.9, 0.9], [0.7, 0.9], [0.5, 0.7]]
    assert ax.get_legend().get_title().get_text() == "mean and range of 2 seeds"


def test_clients_never_visited_and_diverged_seeds_are_left_out():
    visited = np.zeros((2, 2, 4), bool)
    visited[:, 1, :2], visited[0, 1, 0] = True, False
    drawn = lines(personal_models({"Ditto": run(personal_client_accuracy=PERSONAL, client_visited=visited)}))
    np.testing.assert_allclose(drawn["shared"][:, 1], [0.3, 0.8])  # of the first client the second seed alone
    np.testing.assert_allclose(drawn["personal"][:, 1], [0.9, 0.7])
    diverged = run(personal_client_accuracy=PERSONAL, loss=np.array([[1.0, NAN], [1.0, 1.0]]))
    ax = personal_models({"Ditto": diverged})
    np.testing.assert_allclose(lines(ax)["personal"][:, 1], PERSONAL[1, 1, [1, 2, 0]])
    assert "1 of 2 seeds diverged" in ax.get_legend().get_title().get_text()


def test_distributions_of_personal_models_are_of_visited_clients():
    visited = np.zeros((2, 2, 4), bool)
    visited[:, 1, :2] = True
    of = run(personal_client_accuracy=PERSONAL, client_visited=visited)
    own, shared = (
        lines(distributions({"Ditto": of}, f"{model}_client_accuracy"))["Ditto"] for model in ("personal", "test")
    )
    for drawn, recorded in ((own, PERSONAL[:, 1, :2]), (shared, SHARED[:, 1, :3])):
        for x, share in drawn:
            assert share == pytest.approx((recorded <= x).mean())
    earlier = lines(distributions({"Ditto": of}, "personal_client_accuracy", round=0))["Ditto"]
    assert earlier[:, 1].max() == 1  # before anybody was visited all count


def test_of_several_methods_personal_models_beside_fine_tuned_ones():
    ditto = run(personal_client_accuracy=PERSONAL, tuned_client_accuracy=TUNED)
    drawn = lines(personal_models({"FedAvg": run(tuned_client_accuracy=TUNED), "Ditto": ditto}))
    assert list(drawn) == ["FedAvg, fine-tuned", "Ditto, personal"]
    for label, recorded in (("FedAvg, fine-tuned", TUNED), ("Ditto, personal", PERSONAL)):
        for x, share in drawn[label]:
            assert share == pytest.approx((recorded[:, 1, :3] <= x).mean())
    earlier = personal_models({"Ditto": ditto}, round=0)
    np.testing.assert_array_equal(lines(earlier)["personal"][:3, 1], 0.0)


def test_a_client_whose_own_model_diverged_is_not_forgotten():
    losses = np.ones_like(PERSONAL)
    losses[:, 1, 1] = NAN  # its accuracy is still a number
    broken = run(personal_client_accuracy=PERSONAL, personal_client_loss=losses)
    ax = personal_models({"Ditto": broken})
    np.testing.assert_allclose(lines(ax)["shared"][:, 1], SHARED[:, 1, [2, 0]].mean(axis=0))
    np.testing.assert_allclose(lines(ax)["personal"][:, 1], PERSONAL[:, 1, [2, 0]].mean(axis=0))
    assert "whose models diverged: 1" in ax.get_legend().get_title().get_text()
    share = lines(personal_models({"FedAvg": run(tuned_client_accuracy=TUNED), "Ditto": broken}))["Ditto, personal"]
    assert share[0, 1] == pytest.approx(1 / 3)  # at or below everything that is drawn


def test_what_compares_no_models_is_refused():
    with pytest.raises(ValueError, match=r"'FedAvg' has no values .*record them with evaluate=fedjax_sim.per_client"):
        personal_models({"FedAvg": run()})
    with pytest.raises(ValueError, match="evaluated after the rounds"):
        personal_models({"Ditto": run(personal_client_accuracy=PERSONAL)}, round=5)
