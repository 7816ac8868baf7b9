// Numbers, ticks and scales.

const finite = (value) => value !== null && Number.isFinite(value);

function shown(value, digits = 4) {
  if (!finite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e6) return value.toLocaleString("en-GB");
  if (size >= 1e6 || size < 1e-3) return value.toExponential(digits - 1).replace(/\.?0+e/, "e").replace("e+", "e");
  return String(Number(value.toPrecision(digits)));
}

function shownBytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let unit = 0;
  while (Math.abs(value) >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${Number(value.toPrecision(4))} ${units[unit]}`;
}

// At most about `count` round numbers within [low, high].
function linearTicks(low, high, count, whole) {
  const rough = (high - low) / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  let step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
  if (whole) step = Math.max(1, Math.round(step));
  if (!(step > 0)) return [low];
  const ticks = [];
  for (let number = Math.ceil(low / step - 1e-9); number * step <= high + step * 1e-9; number += 1) {
    ticks.push(Number((number * step).toPrecision(12)));
  }
  return ticks;
}

function logTicks(low, high, count) {
  const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const factors = last - first > 3 ? [1] : [1, 2, 5];
  const every = Math.max(1, Math.ceil(((last - first) * factors.length) / (2 * count)));
  const ticks = [];
  for (let power = first; power <= last; power += every) {
    for (const factor of factors) {
      const tick = factor * 10 ** power;
      if (tick >= low * 0.999 && tick <= high * 1.001) ticks.push(Number(tick.toPrecision(12)));
    }
  }
  return ticks.length > 1 ? ticks : linearTicks(low, high, count, false);
}

function makeScale(low, high, from, to, log) {
  const map = log ? Math.log10 : Number;
  const [a, b] = [map(low), map(high)];
  const scale = (value) => from + ((map(value) - a) / (b - a)) * (to - from);
  scale.invert = (place) => {
    const value = a + ((place - from) / (to - from)) * (b - a);
    return log ? 10 ** value : value;
  };
  return scale;
}

// The vertical range of some curves. Where a loss runs away, the axis stops a little above the start.
function verticalRange(curves, loss, log) {
  let [low, high, start] = [Infinity, -Infinity, 0];
  for (const curve of curves) {
    for (const values of [curve.y, curve.low, curve.high]) {
      for (const value of values ?? []) {
        if (finite(value) && (!log || value > 0)) {
          low = Math.min(low, value);
          high = Math.max(high, value);
        }
      }
    }
    if (finite(curve.y[0])) start = Math.max(start, Math.abs(curve.y[0]));
  }
  if (low > high) return log ? [0.1, 1] : [0, 1];
  if (loss && start > 0 && high > 100 * start) {
    return log ? [Math.min(low, start) / 1.5, 10 * start] : [low - 0.1 * start, 2 * start];
  }
  if (log) return low < high ? [low / (high / low) ** 0.05, high * (high / low) ** 0.05] : [low / 2, high * 2];
  const space = low < high ? 0.05 * (high - low) : Math.max(0.1 * Math.abs(low), 1e-6);
  return [low - space, high + space];
}

function spansADecade(curves) {
  const values = curves.flatMap((curve) => curve.y.filter(finite));
  const low = values.reduce((a, b) => Math.min(a, b), Infinity);
  return low > 0 && values.reduce((a, b) => Math.max(a, b), 0) > 10 * low;
}
