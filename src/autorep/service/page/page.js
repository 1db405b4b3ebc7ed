// The page: draw or pick an image, ask both servers, show the answer.

import { join, newQueryId, softmax, split } from "./shares.js";

const $ = (id) => document.getElementById(id);
const board = $("board");
const pen = board.getContext("2d", { willReadFrequently: true });
let servers = [];
let programs = [];
let program = null;
let touched = false;

async function start() {
  try {
    const deployment = await getJson("/v1/deployment");
    servers = deployment.servers;
    if (servers.length !== 2) {
      throw new Error("This server was started without --urls, so the page cannot find both servers.");
    }
    const lists = await Promise.all(servers.map((url) => getJson(`${url}/v1/programs`)));
    const other = new Map(lists[1].programs.map((entry) => [entry.program, JSON.stringify(entry)]));
    programs = lists[0].programs.filter((entry) => other.get(entry.program) === JSON.stringify(entry));
    if (!programs.length) throw new Error("The two servers do not run the same program.");
  } catch (error) {
    $("hint").textContent = "";
    say(`Cannot reach both servers: ${error.message}`, true);
    return;
  }
  for (const [index, entry] of programs.entries()) {
    $("program").add(new Option(entry.info.name || entry.program.slice(0, 12), index));
  }
  $("program-row").hidden = programs.length < 2;
  $("program").addEventListener("change", () => choose(programs[$("program").value]));
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (token) $("token").value = token;
  choose(programs[0]);
  $("ask").disabled = false;
}

function choose(entry) {
  program = entry;
  const [channels, height, width] = entry.input.shape;
  const drawable = channels === 1;
  $("type-row").hidden = !drawable;
  $("hint").textContent = drawable
    ? `Draw with finger or mouse, type a character, or choose a file. The model sees ${width}×${height} grey pixels.`
    : `Choose a picture. The model sees ${width}×${height} pixels in colour.`;
  board.style.cursor = drawable ? "crosshair" : "default";
  clear();
}

function clear() {
  pen.fillStyle = "#000";
  pen.fillRect(0, 0, board.width, board.height);
  touched = false;
}

// ---------------------------------------------------------------- input

let last = null;

function position(event) {
  const box = board.getBoundingClientRect();
  return [((event.clientX - box.left) * board.width) / box.width, ((event.clientY - box.top) * board.height) / box.height];
}

board.addEventListener("pointerdown", (event) => {
  if (!program || program.input.shape[0] !== 1) return;
  board.setPointerCapture(event.pointerId);
  last = position(event);
  stroke(last, last);
});
board.addEventListener("pointermove", (event) => {
  if (!last) return;
  const next = position(event);
  stroke(last, next);
  last = next;
});
for (const name of ["pointerup", "pointercancel"]) board.addEventListener(name, () => (last = null));

function stroke(from, to) {
  pen.strokeStyle = "#fff";
  pen.lineWidth = board.width / 7; // after cropping, about as thick as in the training images
  pen.lineCap = pen.lineJoin = "round";
  pen.beginPath();
  pen.moveTo(...from);
  pen.lineTo(...to);
  pen.stroke();
  touched = true;
}

$("clear").addEventListener("click", () => {
  clear();
  $("typed").value = "";
  say("Cleared.");
});

$("typed").addEventListener("input", () => {
  clear();
  const text = $("typed").value;
  if (!text.trim()) return;
  pen.fillStyle = "#fff";
  pen.font = `bold ${board.height * 0.9}px sans-serif`;
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  pen.fillText(text, board.width / 2, board.height * 0.54);
  touched = true;
});

$("file").addEventListener("change", async () => {
  const file = $("file").files[0];
  if (!file) return;
  try {
    const image = await createImageBitmap(file);
    const side = Math.min(image.width, image.height);
    clear();
    pen.drawImage(image, (image.width - side) / 2, (image.height - side) / 2, side, side, 0, 0, board.width, board.height);
    touched = true;
    say(`${file.name} is ready.`);
  } catch {
    say(`${file.name} is not an image this browser can read.`, true);
  }
  $("file").value = "";
});

/** The board as the model's input: planes of pixels in [0, 1], channel first. */
function pixels() {
  const [channels, height, width] = program.input.shape;
  const source = channels === 1 ? drawingBox() : { x: 0, y: 0, width: board.width, height: board.height };
  const data = pen.getImageData(0, 0, board.width, board.height).data;
  const values = new Float64Array(channels * height * width);
  for (let row = 0; row < height; row++) {
    for (let column = 0; column < width; column++) {
      const sums = averages(data, source, row / height, (row + 1) / height, column / width, (column + 1) / width);
      const place = row * width + column;
      if (channels === 1) values[place] = (sums[0] + sums[1] + sums[2]) / 3;
      else for (let c = 0; c < 3; c++) values[c * height * width + place] = sums[c];
    }
  }
  return values;
}

/** Mean colour of a part of the source box; outside the board is black. */
function averages(data, source, top, bottom, left, right) {
  const sums = [0, 0, 0];
  const y0 = Math.round(source.y + top * source.height);
  const y1 = Math.max(y0 + 1, Math.round(source.y + bottom * source.height));
  const x0 = Math.round(source.x + left * source.width);
  const x1 = Math.max(x0 + 1, Math.round(source.x + right * source.width));
  for (let y = Math.max(0, y0); y < Math.min(board.height, y1); y++) {
    for (let x = Math.max(0, x0); x < Math.min(board.width, x1); x++) {
      for (let c = 0; c < 3; c++) sums[c] += data[4 * (y * board.width + x) + c];
    }
  }
  return sums.map((sum) => sum / ((y1 - y0) * (x1 - x0) * 255));
}

/** A box of the model's aspect around what was drawn, as the training images were cropped. */
function drawingBox() {
  const data = pen.getImageData(0, 0, board.width, board.height).data;
  let [left, right, top, bottom] = [board.width, 0, board.height, 0];
  for (let y = 0; y < board.height; y++) {
    for (let x = 0; x < board.width; x++) {
      if (data[4 * (y * board.width + x)] < 40) continue;
      left = Math.min(left, x);
      right = Math.max(right, x + 1);
      top = Math.min(top, y);
      bottom = Math.max(bottom, y + 1);
    }
  }
  if (left >= right) return { x: 0, y: 0, width: board.width, height: board.height };
  const side = Math.max(right - left, bottom - top);
  return { x: (left + right - side) / 2, y: (top + bottom - side) / 2, width: side, height: side };
}

// ---------------------------------------------------------------- the question

$("ask").addEventListener("click", async () => {
  if (!touched) {
    say("Draw or choose an image first.", true);
    return;
  }
  $("ask").disabled = true;
  try {
    await ask(pixels());
  } catch (error) {
    say(error.message, true);
  }
  $("ask").disabled = false;
});

async function ask(values) {
  const { input, output } = program;
  for (let attempt = 1; ; attempt++) {
    const shares = split(values, input.frac); // new masks for every attempt
    const path = `/v1/programs/${program.program}/queries/${newQueryId()}`;
    say(attempt === 1 ? "The two servers are computing…" : `Asking again (${attempt})…`);
    const withdraw = new AbortController();
    const started = performance.now();
    try {
      const answers = await Promise.all(servers.map((url, i) => post(url + path, shares[i], withdraw.signal)));
      const milliseconds = performance.now() - started;
      const words = answers.map((answer) => new BigUint64Array(answer.body));
      showAnswer(join(words[0], words[1], output.bits, output.frac), milliseconds, answers);
      showViews(values, shares);
      return;
    } catch (error) {
      withdraw.abort(); // the other half is of no use any more
      if (!error.retry || attempt >= 6) throw error;
      await new Promise((resume) => setTimeout(resume, Math.max(300 * attempt, 1000 * error.seconds)));
    }
  }
}

async function post(url, share, signal) {
  const headers = { "Content-Type": "application/octet-stream" };
  const token = $("token").value.trim();
  if (token) headers.Authorization = `Bearer ${token}`;
  const response = await fetch(url, { method: "POST", body: share, headers, signal });
  if (response.ok) return { headers: response.headers, body: await response.arrayBuffer() };
  const refusal = await response.json().catch(() => ({ message: `status ${response.status}` }));
  const error = new Error(`${new URL(url).host}: ${refusal.message}`);
  error.retry = refusal.retry_with_new_masks;
  error.seconds = Number(response.headers.get("Retry-After")) || 0;
  throw error;
}

async function getJson(url) {
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${url}: status ${response.status}`);
  return response.json();
}

// ---------------------------------------------------------------- output

function say(text, wrong = false) {
  $("status").textContent = text;
  $("status").classList.toggle("error", wrong);
}

function showAnswer(logits, milliseconds, answers) {
  const probabilities = softmax(logits);
  const names = program.info.class_names || [];
  const order = probabilities.map((p, i) => [p, i]).sort((a, b) => b[0] - a[0]).slice(0, 5);
  const label = (index) => String(names[index] ?? index);
  if (Math.max(...logits.map(Math.abs)) > (program.info.output_limit ?? Infinity)) {
    $("bars").replaceChildren();
    say("No answer: this image is too far from those the model was made for; its numbers ran out of range.", true);
  } else {
    $("bars").replaceChildren(...order.map(([p, index]) => bar(label(index), p)));
    say(`The answer: ${label(order[0][1])}, ${(100 * order[0][0]).toFixed(1)} % sure.`);
  }
  const number = (name) => Number(answers[0].headers.get(name));
  const facts = [
    ["Time, all in all", `${milliseconds.toFixed(0)} ms`],
    ["Between the servers", `${(1000 * number("Autorep-Seconds")).toFixed(1)} ms, ${number("Autorep-Rounds")} rounds`],
    ["Sent by each server", `${(number("Autorep-Sent-Bytes") / 1000).toFixed(1)} kB`],
    ["You sent to each", `${((8 * program.input.shape.reduce((a, b) => a * b, 1)) / 1000).toFixed(1)} kB`],
  ];
  $("facts").replaceChildren(...facts.flatMap(([term, value]) => [text("dt", term), text("dd", value)]));
  $("facts").hidden = false;
}

function bar(name, probability) {
  const item = document.createElement("li");
  const track = text("div", "");
  track.className = "track";
  const fill = text("div", "");
  fill.className = "fill";
  fill.style.width = `${100 * probability}%`;
  track.append(fill);
  const label = text("span", name);
  label.className = "name";
  const value = text("span", `${(100 * probability).toFixed(1)} %`);
  value.className = "value";
  item.append(label, track, value);
  return item;
}

function text(kind, content) {
  const element = document.createElement(kind);
  element.textContent = content;
  return element;
}

function showViews(values, shares) {
  paint($("view-own"), (i) => 255 * values[i]);
  shares.forEach((share, party) => paint($(`view-${party}`), (i) => Number(share[i] >> 56n)));
  $("seen").hidden = false;
}

/** Paint one plane (grey) or three (colour) of numbers 0 to 255. */
function paint(canvas, value) {
  const [channels, height, width] = program.input.shape;
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  for (let i = 0; i < width * height; i++) {
    for (let c = 0; c < 3; c++) image.data[4 * i + c] = value(channels === 3 ? c * width * height + i : i);
    image.data[4 * i + 3] = 255;
  }
  context.putImageData(image, 0, 0);
}

start();
