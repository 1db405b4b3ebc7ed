// A picture as the network takes it: the same steps and arithmetic as autorep/preprocessing.py.

const INK = 40; // level from which a pixel of a drawing counts as ink
const LARGEST_PICTURE = 100_000_000;

/** The specification in a program's facts; a plain picture where they have none. */
export function specification(program) {
  const found = program.info.preprocessing;
  if (found) return found;
  const shape = program.input.shape;
  return { shape, kind: "picture", shorter: Math.max(shape[1], shape[2]) };
}

/** One sentence for people. */
export function describe({ shape: [channels, height, width], kind, shorter }) {
  const colour = channels === 1 ? "grey" : "in colour";
  if (kind === "drawing") return `The ink is centred, light on dark, and scaled to ${width}×${height} pixels, ${colour}.`;
  if (shorter === Math.max(height, width)) return `The centre is cut out and scaled to ${width}×${height} pixels, ${colour}.`;
  return `Scaled to ${shorter} pixels, the centre of ${width}×${height} cut out, ${colour}.`;
}

/** Levels (0 to 255), channels first, of anything a canvas can draw. */
export function levels(source, specification) {
  const { shape, kind, shorter } = specification;
  let picture = flat(source, shape[0]);
  let box = [0, 0, picture.width, picture.height];
  if (kind === "drawing") {
    picture = ink(picture);
    box = [0, 0, picture.width, picture.height];
  } else {
    const step = Math.min(picture.width, picture.height) / shorter;
    const [width, height] = [shape[2] * step, shape[1] * step];
    const [left, top] = [(picture.width - width) / 2, (picture.height - height) / 2];
    box = [left, top, left + width, top + height];
  }
  const result = new Uint8ClampedArray(shape[0] * shape[1] * shape[2]);
  picture.planes.forEach((plane, channel) => {
    const scaled = scale(plane, picture.width, picture.height, box, shape[2], shape[1]);
    for (let i = 0; i < scaled.length; i++) result[channel * scaled.length + i] = Math.floor(scaled[i] + 0.5);
  });
  return result;
}

/** Planes of 8-bit levels: one of grey or three of colour; transparent parts are white. */
function flat(source, channels) {
  const { width, height } = source;
  if (width * height > LARGEST_PICTURE) throw new Error(`The picture has ${width}×${height} pixels; that is too many.`);
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.fillStyle = "#fff";
  context.fillRect(0, 0, width, height);
  context.drawImage(source, 0, 0);
  const data = context.getImageData(0, 0, width, height).data;
  const planes = Array.from({ length: channels }, () => new Float64Array(width * height));
  for (let i = 0; i < width * height; i++) {
    const [red, green, blue] = [data[4 * i], data[4 * i + 1], data[4 * i + 2]];
    if (channels === 1) planes[0][i] = (red * 19595 + green * 38470 + blue * 7471 + 32768) >> 16;
    else [planes[0][i], planes[1][i], planes[2][i]] = [red, green, blue];
  }
  return { width, height, planes };
}

/** A drawing as light ink on black, on a square that the ink fills. */
function ink({ width, height, planes: [plane] }) {
  const edge = [];
  for (let x = 0; x < width; x++) edge.push(plane[x], plane[(height - 1) * width + x]);
  for (let y = 0; y < height; y++) edge.push(plane[y * width], plane[y * width + width - 1]);
  const light = edge.reduce((sum, level) => sum + level, 0) / edge.length > 127;
  const grey = light ? plane.map((level) => 255 - level) : plane;
  let [left, right, top, bottom] = [width, 0, height, 0];
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      if (grey[y * width + x] < INK) continue;
      [left, right] = [Math.min(left, x), Math.max(right, x + 1)];
      [top, bottom] = [Math.min(top, y), Math.max(bottom, y + 1)];
    }
  }
  if (left >= right) [left, right, top, bottom] = [0, width, 0, height];
  const side = Math.max(right - left, bottom - top);
  const [across, down] = [Math.floor((side - (right - left)) / 2), Math.floor((side - (bottom - top)) / 2)];
  const square = new Float64Array(side * side);
  for (let y = top; y < bottom; y++) {
    for (let x = left; x < right; x++) square[(y - top + down) * side + x - left + across] = grey[y * width + x];
  }
  return { width: side, height: side, planes: [square] };
}

/** A part of a plane scaled by a triangle filter as wide as the step, first along rows, then along columns. */
function scale(plane, width, height, [left, top, right, bottom], newWidth, newHeight) {
  const across = filter(left, right, width, newWidth);
  const down = filter(top, bottom, height, newHeight);
  const [first, last] = [down[0].start, down.at(-1).start + down.at(-1).weights.length];
  const rows = new Float64Array((last - first) * newWidth);
  for (let y = first; y < last; y++) {
    for (let x = 0; x < newWidth; x++) {
      const { start, weights } = across[x];
      let sum = 0;
      for (let k = 0; k < weights.length; k++) sum += weights[k] * plane[y * width + start + k];
      rows[(y - first) * newWidth + x] = sum;
    }
  }
  const result = new Float64Array(newWidth * newHeight);
  for (let y = 0; y < newHeight; y++) {
    const { start, weights } = down[y];
    for (let x = 0; x < newWidth; x++) {
      let sum = 0;
      for (let k = 0; k < weights.length; k++) sum += weights[k] * rows[(start - first + k) * newWidth + x];
      result[y * newWidth + x] = sum;
    }
  }
  return result;
}

/** For each new position: where its weights start and what they are; they add up to 1. */
function filter(from, to, length, count) {
  const step = (to - from) / count;
  const reach = Math.max(step, 1);
  return Array.from({ length: count }, (_, i) => {
    const centre = from + (i + 0.5) * step;
    const start = Math.max(0, Math.trunc(centre - reach + 0.5));
    const end = Math.min(length, Math.trunc(centre + reach + 0.5));
    const weights = [];
    for (let j = start; j < end; j++) weights.push(Math.max(0, 1 - Math.abs((j - centre + 0.5) / reach)));
    const total = weights.reduce((a, b) => a + b, 0);
    return { start, weights: weights.map((weight) => weight / total) };
  });
}
