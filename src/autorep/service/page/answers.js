// What an answer says: the same reading as autorep.program.answer and autorep.service.answers.

const SHOWN = 5;

/** The best classes as [index, probability], the latter null where the servers give classes only; and whether in range. */
export function readAnswer(values, info) {
  const { gives = "logits", checked = false } = info.answer ?? {};
  const flagged = checked && values.at(-1) !== 1;
  const rest = checked ? values.slice(0, -1) : values;
  if (gives !== "logits") return { best: rest.map((index) => [index, null]), inRange: !flagged };
  const [size = rest.length] = Object.values(info.outputs ?? {}); // of several outputs, the first
  const best = softmax(rest.slice(0, size)).map((probability, index) => [index, probability]);
  best.sort((a, b) => b[1] - a[1]);
  const beyond = Math.max(...rest.map(Math.abs)) > (info.output_limit ?? Infinity);
  return { best: best.slice(0, SHOWN), inRange: !flagged && !beyond };
}

/** Probabilities from logits. */
function softmax(logits) {
  const top = Math.max(...logits);
  const weights = logits.map((value) => Math.exp(value - top));
  const total = weights.reduce((a, b) => a + b, 0);
  return weights.map((weight) => weight / total);
}
