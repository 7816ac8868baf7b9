// What a reader can change: colours of the page, order of the table, curves, axes, runs.

addEventListener("error", (event) => {
  const place = document.getElementById("trouble");
  place.textContent = `The curves cannot be drawn here: ${event.message}`;
  place.hidden = false;
});

const root = document.documentElement;
const data = JSON.parse(document.getElementById("data").textContent);
const asked = new URLSearchParams(location.search);
const runs = data.runs.map((run, number) => ({ ...run, number, shown: true }));
// What the panels of personal models draw: a line a run, or those of one run's models.
const models = (data.personal?.lines ?? []).map((line, number) => ({
  ...line, number, get shown() { return !data.personal.ofRuns || runs[number].shown; } }));

function themes() {
  const button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
  const tell = () => { button.textContent = isDark() ? "Light colours" : "Dark colours"; }; // what a click brings
  if (["dark", "light"].includes(asked.get("theme"))) root.dataset.theme = asked.get("theme");
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    tell();
  });
  system.addEventListener("change", tell);
  button.hidden = false;
  tell();
}

// A table wider than its place says so, as long as there is more to the right of what is seen.
function widths() {
  const tell = (place) => place.classList.toggle("more", place.scrollWidth - place.clientWidth - place.scrollLeft > 3);
  // In the next frame: saying so changes the size of what is observed, which browsers report as an error of the page.
  const all = (entries) => entries.forEach((entry) => tell(entry.target.closest(".scroll")));
  const seen = new ResizeObserver((entries) => requestAnimationFrame(() => all(entries)));
  for (const place of document.querySelectorAll(".scroll")) {
    place.addEventListener("scroll", () => tell(place), { passive: true });
    seen.observe(place);
    seen.observe(place.firstElementChild);
    tell(place);
  }
}

// Headings of the columns become buttons: numbers sort from high to low first, missing ones stay below.
function sortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  heads.forEach((head, column) => {
    const button = make("button", { type: "button", class: "sort" }, ...head.childNodes);
    head.replaceChildren(button);
    head.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => {
      const isText = head.dataset.kind === "text";
      const before = head.getAttribute("aria-sort");
      const rising = before === "none" ? isText : before === "descending";
      for (const other of heads) other.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", rising ? "ascending" : "descending");
      const key = (row) => row.cells[column].dataset.value ?? "";
      const compare = (a, b) => {
        if (isText) return key(a).localeCompare(key(b), "en", { numeric: true }) * (rising ? 1 : -1);
        if (key(a) === "" || key(b) === "") return (key(a) === "") - (key(b) === "");
        return (Number(key(a)) - Number(key(b))) * (rising ? 1 : -1);
      };
      body.append(...[...body.rows].sort(compare));
    });
  });
}

function legend(changed) {
  const list = document.getElementById("legend");
  const buttons = runs.map((run) => {
    const button = make("button", { type: "button", "aria-pressed": "true" }, swatch(run), make("span", {}, run.name));
    button.addEventListener("click", () => show((one) => (one === run ? !one.shown : one.shown)));
    return button;
  });
  function show(which) {
    for (const [number, run] of runs.entries()) {
      run.shown = which(run);
      buttons[number].setAttribute("aria-pressed", String(run.shown));
    }
    changed();
  }
  list.replaceChildren(...buttons.map((button) => make("li", {}, button)));
  if (runs.length > 2) {
    const all = make("button", { type: "button", class: "plain" }, "show all");
    const none = make("button", { type: "button", class: "plain" }, "hide all");
    all.addEventListener("click", () => show(() => true));
    none.addEventListener("click", () => show(() => false));
    list.append(make("li", {}, all), make("li", {}, none));
  }
}

// What is drawn of a record against an axis, or of a spread: as the data have it, with the places of its curves.
function panelOf(told, curves, xLabel, more) {
  const unpacked = curves.map((curve) => curve && { ...curve, x: data.places[curve.x] });
  return { ...told, xLabel, xWord: xLabel, xText: (value) => shown(value), whole: false, curves: unpacked, ...more };
}

function curvePanel(record, axis) {
  const curves = record.curves[axis.id] ?? [];
  if (!curves.some(Boolean)) return null;
  const text = axis.id === "bytes" ? { xText: shownBytes } : {};
  return panelOf(record, curves, axis.label, { xWord: axis.word, whole: axis.id === "round", ...text });
}

function main() {
  const form = document.getElementById("controls");
  const host = document.getElementById("curves");
  const options = { scale: "auto", bands: true };
  const linear = { scale: "linear", bands: true };
  const boxes = [...form.querySelectorAll("input[name=curve]")];
  let panels = [];
  const below = [];

  for (const name of ["axis", "scale"]) {
    const choice = form.elements[name];
    if (choice && [...choice.options].some((option) => option.value === asked.get(name))) choice.value = asked.get(name);
  }
  if (asked.has("curves")) {
    const names = asked.get("curves").split(",");
    for (const box of boxes) box.checked = names.includes(data.records[box.value].name);
    for (const fold of form.querySelectorAll("details")) fold.open = fold.querySelector(":checked") !== null;
  }
  function build() {
    const axis = data.axes.find((one) => one.id === (form.elements.axis?.value ?? "round"));
    options.scale = form.elements.scale.value;
    options.bands = form.elements.bands?.checked ?? true;
    const chosen = boxes.filter((box) => box.checked);
    const found = chosen.map((box) => curvePanel(data.records[box.value], axis)).filter(Boolean);
    host.replaceChildren();
    host.classList.toggle("single", found.length === 1);
    panels = found.map((panel) => makePanel(host, panel, runs, options));
    const missing = chosen.length - found.length;
    const note = missing ? `${missing} of the chosen curves were not recorded against ${axis.label}.` : "No curve is chosen.";
    if (missing || !chosen.length) host.append(make("p", { class: "note" }, note));
    draw(panels); // once all of them are there, and so as wide as they will be
  }
  const draw = (some) => some.forEach((panel) => panel.draw());
  const redraw = () => draw([...panels, ...below]);
  form.addEventListener("change", build);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
  legend(redraw);
  build();
  // Panels that are the same whatever is chosen above them.
  const fixed = (place, some, xLabel, lines, more) => {
    const parent = document.getElementById(place);
    for (const one of some) below.push(makePanel(parent, panelOf(one, one.curves, xLabel(one), more(one)), lines, linear));
  };
  fixed("own", data.personal?.panels ?? [], (one) => one.axis, models, (one) =>
    (isPoints(one.curves.find(Boolean)) ? { xWord: "client", whole: true } : { range: [0, 1.02] }));
  fixed("spreads", data.spreads, (one) => one.label, runs, () => ({ range: [0, 1.02] }));
  draw(below);
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth !== width) redraw();
    width = innerWidth;
  });
}

themes();
for (const table of document.querySelectorAll("table.sortable")) sortable(table);
widths();
main();
root.dataset.drawn = "true";
