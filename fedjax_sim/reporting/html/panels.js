// A panel as a reader uses it: pointer, touch and arrow keys move a cross-hair; the values there are shown and said.

function makePanel(parent, panel, runs, options) {
  const plot = make("div", { class: "plot", role: "slider", tabindex: "0", "aria-orientation": "horizontal",
    "aria-label": `${panel.what} against ${panel.xLabel}: values by arrow keys` });
  const tip = make("div", { class: "tip", hidden: "" });
  const head = make("figcaption", {}, make("h3", {}, panel.label));
  if (panel.note) head.append(make("p", { class: "note" }, panel.note));
  parent.append(make("figure", { class: "panel" }, head, plot));
  plot.append(tip);
  let drawn = null;
  let stop = -1;

  function say() {
    const x = drawn.stops[stop] ?? null;
    plot.setAttribute("aria-valuemin", "0");
    plot.setAttribute("aria-valuemax", String(Math.max(0, drawn.stops.length - 1)));
    plot.setAttribute("aria-valuenow", String(Math.max(0, stop)));
    const rows = x === null ? [] : valuesAt(panel, drawn, x);
    const said = rows.map((row) => `${row.run.name} ${inWords(row)}`).join("; ");
    plot.setAttribute("aria-valuetext", x === null ? "no place chosen" : `${panel.xWord} ${panel.xText(x)}: ${said || "no values"}`);
    drawn.cross.replaceChildren();
    tip.hidden = x === null || !rows.length;
    if (x === null) return;
    const place = drawn.sx(x);
    drawn.cross.append(make("svg:line", { class: "hair", x1: at(place), x2: at(place), y1: drawn.box.top, y2: drawn.box.bottom }));
    for (const row of rows) {
      if (finite(row.y) && row.y >= drawn.box.top - 2 && row.y <= drawn.box.bottom + 2) {
        drawn.cross.append(make("svg:circle", { class: `dot ${row.run.colour}`, cx: at(row.stepped ? place : drawn.sx(row.x + row.shift)), cy: at(row.y), r: 4 }));
      }
    }
    const table = make("table", {}, make("caption", {}, `${panel.xWord} ${panel.xText(x)}`));
    const beside = rows.map((row) => besides(row, x, panel));
    for (const [number, row] of rows.entries()) {
      const cells = [make("td", {}, swatch(row.run)), make("th", { scope: "row" }, row.run.name), make("td", {}, inWords(row))];
      if (beside.some(Boolean)) cells.push(make("td", { class: "range" }, beside[number]));
      table.append(make("tr", {}, ...cells));
    }
    tip.replaceChildren(table);
    const room = Math.max(0, drawn.width - tip.offsetWidth - 4);
    const side = place > drawn.width / 2 ? place - tip.offsetWidth - 12 : place + 12;
    tip.style.left = `${Math.min(room, Math.max(0, side))}px`;
  }

  function draw() {
    const x = drawn && stop >= 0 ? drawn.stops[stop] : null;
    drawn = drawPanel(plot, panel, runs, options);
    stop = x === null || !drawn.stops.length ? -1 : nearest(drawn.stops, x);
    say();
  }

  function move(to) {
    stop = drawn.stops.length ? Math.max(0, Math.min(drawn.stops.length - 1, to)) : -1;
    say();
  }

  function point(event) {
    const frame = drawn.svg.getBoundingClientRect();
    if (drawn.stops.length) move(nearest(drawn.stops, drawn.sx.invert(((event.clientX - frame.left) * drawn.width) / frame.width)));
  }

  function leave() {
    stop = -1;
    say();
  }

  plot.addEventListener("pointermove", point);
  plot.addEventListener("pointerdown", point);
  plot.addEventListener("pointerleave", (event) => event.pointerType !== "touch" && leave());
  plot.addEventListener("blur", leave);
  plot.addEventListener("focus", () => stop < 0 && plot.matches(":focus-visible") && move(drawn.stops.length - 1));
  plot.addEventListener("keydown", (event) => {
    const far = Math.max(1, Math.round(drawn.stops.length / 10));
    const steps = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: far, PageDown: -far };
    if (event.key in steps) move((stop < 0 && steps[event.key] < 0 ? drawn.stops.length : stop) + steps[event.key]);
    else if (event.key === "Home") move(0);
    else if (event.key === "End") move(drawn.stops.length - 1);
    else if (event.key === "Escape") leave();
    else return;
    event.preventDefault();
  });
  return { draw };
}

// Beside a value: the range of the seeds, and where the value is from if that is another place.
function besides(row, x, panel) {
  const range = row.range ? `${shown(row.range[0], 3)} to ${shown(row.range[1], 3)}` : "";
  const place = !row.stepped && finite(row.value) && row.x !== x ? `at ${panel.xText(row.x)}` : "";
  return [range, place].filter(Boolean).join(", ");
}

function swatch(run) {
  return make("svg:svg", { class: "swatch", viewBox: "0 0 34 12", width: 34, height: 12, "aria-hidden": "true" },
    make("svg:path", { class: `curve ${run.style}`, d: "M1 6H33" }),
    make("svg:path", { class: `mark ${run.colour}`, d: run.marker, transform: "translate(17 6)" }));
}
