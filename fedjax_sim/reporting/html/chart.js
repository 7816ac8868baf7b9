// One panel: axes, bands, lines, markers, and the values under a cross-hair.

const SVG = "http://www.w3.org/2000/svg";

function make(kind, attributes = {}, ...children) {
  const node = kind.startsWith("svg:") ? document.createElementNS(SVG, kind.slice(4)) : document.createElement(kind);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

const at = (value) => value.toFixed(1);

// The path of a line, with gaps where a value is missing; along steps where each value holds until the next.
function linePath(x, y, stepped) {
  let path = "";
  let pen = false;
  for (let i = 0; i < x.length; i += 1) {
    if (!finite(x[i]) || !finite(y[i])) {
      pen = false;
      continue;
    }
    if (!pen) path += `M${at(x[i])} ${at(y[i])}`;
    else path += stepped ? `H${at(x[i])}V${at(y[i])}` : `L${at(x[i])} ${at(y[i])}`;
    if (!pen && !finite(y[i + 1] ?? null)) path += "h.01"; // a point between gaps is a dot
    pen = true;
  }
  return path;
}

function bandPath(x, low, high, stepped) {
  let path = "";
  for (let i = 0; i < x.length; ) {
    if (!finite(low[i]) || !finite(high[i])) {
      i += 1;
      continue;
    }
    let end = i;
    while (end + 1 < x.length && finite(low[end + 1]) && finite(high[end + 1])) end += 1;
    path += linePath(x.slice(i, end + 1), high.slice(i, end + 1), stepped);
    for (let j = end; j >= i; j -= 1) path += stepped && j < end ? `V${at(low[j])}H${at(x[j])}` : `L${at(x[j])} ${at(low[j])}`;
    path += "Z";
    i = end + 1;
  }
  return path;
}

// Whether a curve is points, each run's a little beside the others' at the same place.
const isPoints = (curve) => curve.shift !== undefined;

// Where the markers of a line go: about six, at other places for each run; everywhere if it is points.
function markerPlaces(curve, number) {
  const places = [...curve.x.keys()].filter((i) => finite(curve.y[i]));
  if (isPoints(curve)) return places;
  const every = Math.max(1, Math.floor(places.length / 6));
  return places.filter((_, i) => i % every === (number * 3) % every);
}

let charts = 0;

// panel is {label, what, note, loss, xLabel, xWord, xText, whole, range, curves: one or null a run}.
function drawPanel(host, panel, runs, options) {
  const width = Math.max(240, Math.floor(host.clientWidth));
  const height = Math.round(Math.min(340, Math.max(220, width * 0.55)));
  const present = runs.filter((run) => run.shown && panel.curves[run.number]);
  const curves = present.map((run) => panel.curves[run.number]);
  const log = options.scale === "log" || (options.scale === "auto" && panel.loss && spansADecade(curves));
  const [low, high] = panel.range ?? verticalRange(curves, panel.loss, log);
  const all = curves.flatMap((curve) => {
    const room = isPoints(curve) ? 0.5 : 0;
    return [curve.x[0] - room, curve.x[curve.x.length - 1] + room, curve.lost ?? curve.x[0]];
  });
  let [left, right] = [Math.min(...all), Math.max(...all)];
  if (!(left < right)) [left, right] = finite(left) ? [left - 0.5, left + 0.5] : [0, 1];
  const yTicks = (log ? logTicks : linearTicks)(low, high, Math.max(4, height / 50), false);
  const gutter = 16 + 6.6 * Math.max(...yTicks.map((tick) => shown(tick, 3).length));
  const box = { left: gutter, right: width - 22, top: 12, bottom: height - 44 };
  const sx = makeScale(left, right, box.left, box.right, false);
  const sy = makeScale(low, high, box.bottom, box.top, log);
  const place = (value) => (finite(value) && (!log || value > 0) ? Math.max(-4000, Math.min(4000, sy(value))) : null);

  const svg = make("svg:svg", { viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true", focusable: "false" });
  const clip = `clip-${(charts += 1)}`;
  svg.append(make("svg:clipPath", { id: clip }, make("svg:rect", {
    x: box.left - 4, y: box.top - 4, width: box.right - box.left + 8, height: box.bottom - box.top + 8 })));
  for (const tick of yTicks) {
    svg.append(make("svg:line", { class: "grid", x1: box.left, x2: box.right, y1: at(sy(tick)), y2: at(sy(tick)) }));
    svg.append(make("svg:text", { class: "tick", x: box.left - 7, y: at(sy(tick) + 4), "text-anchor": "end" }, shown(tick, 3)));
  }
  for (const tick of linearTicks(left, right, (box.right - box.left) / 85, panel.whole)) {
    svg.append(make("svg:line", { class: "edge", x1: at(sx(tick)), x2: at(sx(tick)), y1: box.bottom, y2: box.bottom + 5 }));
    svg.append(make("svg:text", { class: "tick", x: at(sx(tick)), y: box.bottom + 19, "text-anchor": "middle" }, panel.xText(tick)));
  }
  svg.append(make("svg:path", { class: "edge", d: `M${at(box.left)} ${box.top}V${box.bottom}H${box.right}` }));
  svg.append(make("svg:text", { class: "label", x: at((box.left + box.right) / 2), y: height - 8, "text-anchor": "middle" }, panel.xLabel));

  const inside = make("svg:g", { "clip-path": `url(#${clip})` });
  const [bands, lines] = [make("svg:g", { class: "bands" }), make("svg:g", { class: "lines" })];
  for (const run of present) {
    const curve = panel.curves[run.number];
    const x = curve.x.map((value) => sx(value + (curve.shift ?? 0)));
    const y = curve.y.map(place);
    if (options.bands && curve.low && isPoints(curve)) {
      const bars = x.map((value, i) => `M${at(value)} ${at(place(curve.low[i]))}V${at(place(curve.high[i]))}`);
      bands.append(make("svg:path", { class: `bar ${run.colour}`, d: bars.join("") }));
    } else if (options.bands && curve.low) {
      bands.append(make("svg:path", { class: `band ${run.colour}`, d: bandPath(x, curve.low.map(place), curve.high.map(place), curve.stepped) }));
    }
    if (!isPoints(curve)) lines.append(make("svg:path", { class: `curve ${run.style}`, d: linePath(x, y, curve.stepped) }));
    for (const i of markerPlaces(curve, run.number)) {
      if (finite(y[i])) lines.append(make("svg:path", { class: `mark ${run.colour}`, d: run.marker, transform: `translate(${at(x[i])} ${at(y[i])})` }));
    }
  }
  inside.append(bands, lines);
  svg.append(inside);
  for (const run of present) {
    const lost = panel.curves[run.number].lost;
    if (finite(lost ?? null)) {
      svg.append(make("svg:path", { class: `lost ${run.colour}`, d: "M-4-4L4 4M-4 4L4-4", transform: `translate(${at(sx(lost))} ${box.top})` }));
    }
  }
  if (!present.length) {
    svg.append(make("svg:text", { class: "label", x: width / 2, y: height / 2 - 16, "text-anchor": "middle" }, "no run shown has values here"));
  }
  const cross = make("svg:g", { class: "cross" });
  svg.append(cross);
  host.querySelector("svg")?.remove();
  host.prepend(svg);
  return { svg, cross, box, sx, place, present, width, log, stops: stopsOf(curves) };
}

// All places where some curve has a value, rising.
function stopsOf(curves) {
  const stops = new Set();
  for (const curve of curves) {
    for (const value of curve.x) stops.add(value);
    if (finite(curve.lost ?? null)) stops.add(curve.lost);
  }
  return [...stops].sort((a, b) => a - b);
}

function nearest(sorted, value) {
  let [low, high] = [0, sorted.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (sorted[middle] <= value) low = middle;
    else high = middle;
  }
  return value - sorted[low] <= sorted[high] - value ? low : high;
}

// The index of a curve's value at x: the last one by then of steps, else the nearest; -1 beyond its ends.
function indexAt(curve, x) {
  const last = curve.x.length - 1;
  const margin = 1e-9 * Math.abs(curve.x[last]);
  if (curve.stepped) {
    if (x < curve.x[0]) return -1;
    const i = nearest(curve.x, x);
    return curve.x[i] > x ? i - 1 : i;
  }
  const gap = last > 0 ? (curve.x[last] - curve.x[0]) / last : 0;
  return x < curve.x[0] - margin || x > curve.x[last] + margin + gap / 2 ? -1 : nearest(curve.x, x);
}

// The rows of the read-out at x, highest first.
function valuesAt(panel, drawn, x) {
  const rows = [];
  for (const run of drawn.present) {
    const curve = panel.curves[run.number];
    const i = indexAt(curve, x);
    const lost = finite(curve.lost ?? null) && x >= curve.lost;
    if (i < 0 && !lost) continue;
    const value = lost ? null : curve.y[i];
    const range = finite(value) && curve.low ? [curve.low[i], curve.high[i]] : null;
    rows.push({ run, value, range, stepped: curve.stepped, shift: curve.shift ?? 0, x: curve.x[i], y: finite(value) ? drawn.place(value) : null });
  }
  return rows.sort((a, b) => (finite(b.value) ? b.value : -Infinity) - (finite(a.value) ? a.value : -Infinity));
}

const inWords = (row) => (finite(row.value) ? shown(row.value) : "not finite");
