// The page: draw or pick an image, ask both servers, show the answer.

import { readAnswer } from "./answers.js";
import { describe, levels, specification } from "./pixels.js";
import { join, newQueryId, serverToken, split } from "./shares.js";

const $ = (id) => document.getElementById(id);
const board = $("board");
const pen = board.getContext("2d", { willReadFrequently: true });
let servers = [];
let programs = [];
let program = null;
let recipe = null; // how a picture becomes the program's input
let picture = null; // what to ask about: the board after drawing, or a picture

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
  recipe = specification(entry);
  const drawable = recipe.shape[0] === 1;
  const names = entry.info.class_names || [];
  $("model-name").textContent = entry.info.name || entry.program.slice(0, 12);
  $("model-classes").textContent = names.length
    ? `It tells ${names.length} classes apart: ${names.slice(0, 12).join(", ")}${names.length > 12 ? ", …" : ""}.`
    : "";
  $("type-row").hidden = !drawable;
  const samples = entry.info.samples || [];
  const ways = [...(drawable ? ["draw with finger or mouse", "type a character"] : []), "choose, drop or paste a picture"];
  if (samples.length) ways.push("click a sample");
  $("hint").textContent = `${ways.join(", or ").replace(/^./, (first) => first.toUpperCase())}.`;
  $("invitation").textContent = drawable ? "Draw here" : "Drop a picture here";
  $("steps").textContent = describe(recipe);
  board.style.cursor = drawable ? "crosshair" : "default";
  showSamples(samples);
  clear();
}

/** Pictures that the model's owner published with it. */
function showSamples(samples) {
  $("samples").hidden = !samples.length;
  $("samples").replaceChildren(
    ...samples.map((source, number) => {
      const button = document.createElement("button");
      const image = new Image();
      image.src = source;
      image.alt = `Sample ${number + 1}`;
      button.type = "button";
      button.className = "sample";
      button.append(image);
      button.addEventListener("click", async () => usePicture(await createImageBitmap(image), image.alt));
      return button;
    }),
  );
}

function clear() {
  pen.fillStyle = "#000";
  pen.fillRect(0, 0, board.width, board.height);
  picture = null;
  changed();
}

/** Whatever was answered belongs to another image now. */
function changed() {
  $("bars").replaceChildren();
  $("facts").hidden = $("seen").hidden = true;
  $("preview-row").hidden = picture === null;
  $("invitation").hidden = picture !== null;
  if (picture !== null) paint($("preview"), recipe.shape, levels(picture, recipe));
}

// ---------------------------------------------------------------- input

let last = null;

function position(event) {
  const box = board.getBoundingClientRect();
  return [((event.clientX - box.left) * board.width) / box.width, ((event.clientY - box.top) * board.height) / box.height];
}

board.addEventListener("pointerdown", (event) => {
  if (!recipe || recipe.shape[0] !== 1) return;
  board.setPointerCapture(event.pointerId);
  if (picture !== board) clear();
  $("invitation").hidden = true;
  last = position(event);
  stroke(last, last);
});
board.addEventListener("pointermove", (event) => {
  if (!last) return;
  const next = position(event);
  stroke(last, next);
  last = next;
});
for (const name of ["pointerup", "pointercancel"]) {
  board.addEventListener(name, () => {
    if (last) drawn();
    last = null;
  });
}

function stroke(from, to) {
  pen.strokeStyle = "#fff";
  pen.lineWidth = board.width / 7; // after cropping, about as thick as in the training images
  pen.lineCap = pen.lineJoin = "round";
  pen.beginPath();
  pen.moveTo(...from);
  pen.lineTo(...to);
  pen.stroke();
  picture = board;
}

/** The board itself is the picture now. */
function drawn() {
  picture = board;
  changed();
  say("Ready to ask.");
}

$("clear").addEventListener("click", () => {
  clear();
  $("typed").value = "";
  say("Cleared.");
});

$("typed").addEventListener("input", () => {
  clear();
  const character = $("typed").value;
  if (!character.trim()) return;
  pen.fillStyle = pen.strokeStyle = "#fff";
  pen.font = `bold ${board.height * 0.9}px sans-serif`;
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  pen.lineWidth = board.height / 35; // print is thinner than handwriting
  pen.lineJoin = "round";
  pen.fillText(character, board.width / 2, board.height * 0.54);
  pen.strokeText(character, board.width / 2, board.height * 0.54);
  drawn();
});

$("file").addEventListener("change", async () => {
  await useFile($("file").files[0]);
  $("file").value = "";
});

// A picture may also be dropped anywhere on the page, or pasted.
for (const name of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(name, (event) => {
    event.preventDefault(); // the browser would leave the page and show the file
    $("stage").classList.toggle("over", name === "dragover");
    if (name === "drop") useFile(event.dataTransfer.files[0]);
  });
}
document.addEventListener("paste", (event) => useFile(event.clipboardData.files[0]));

async function useFile(file) {
  if (!file || !recipe) return;
  try {
    usePicture(await createImageBitmap(file), file.name);
  } catch {
    say(`${file.name} is not an image this browser can read.`, true);
  }
}

/** Show a picture on the board and ask about it next. */
function usePicture(image, name) {
  clear();
  const { width, height } = image;
  const step = Math.min(board.width / width, board.height / height);
  pen.imageSmoothingEnabled = step < 4; // few pixels are shown as squares
  pen.drawImage(image, (board.width - step * width) / 2, (board.height - step * height) / 2, step * width, step * height);
  picture = image;
  changed();
  say(`${name} is ready.`);
}

// ---------------------------------------------------------------- the question

$("ask").addEventListener("click", async () => {
  if (picture === null) {
    say("Draw or choose an image first.", true);
    return;
  }
  $("ask").disabled = true;
  try {
    await ask(Float64Array.from(levels(picture, recipe), (level) => level / 255));
    $("bars").scrollIntoView({ block: "nearest" }); // on a phone it is below the picture
  } catch (error) {
    say(error.message, true);
  }
  $("ask").disabled = false;
});

async function ask(values) {
  const { input, output } = program;
  const [low, high] = program.info.input_range ?? [-Infinity, Infinity];
  if (!values.every((value) => value >= low && value <= high)) {
    throw new Error(`This program was made for values from ${low} to ${high}; this picture has others.`);
  }
  for (let attempt = 1; ; attempt++) {
    const shares = split(values, input.frac); // new masks for every attempt
    const path = `/v1/programs/${program.program}/queries/${newQueryId()}`;
    say(attempt === 1 ? "The two servers are computing…" : `Asking again (${attempt})…`);
    const withdraw = new AbortController();
    const started = performance.now();
    try {
      const answers = await Promise.all(servers.map((url, i) => post(i, path, shares[i], withdraw.signal)));
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

async function post(index, path, share, signal) {
  const url = servers[index] + path;
  const headers = { "Content-Type": "application/octet-stream" };
  const token = $("token").value.trim();
  if (token) headers.Authorization = `Bearer ${await serverToken(token, index)}`;
  const response = await fetch(url, { method: "POST", body: share, headers, signal });
  if (response.ok) return { headers: response.headers, body: await response.arrayBuffer() };
  const refusal = await response.json().catch(() => ({ message: `status ${response.status}` }));
  if (response.status === 401) throw needsToken(Boolean(token));
  const error = new Error(`${new URL(url).host}: ${refusal.message}`);
  error.retry = refusal.retry_with_new_masks;
  error.seconds = Number(response.headers.get("Retry-After")) || 0;
  throw error;
}

/** Open the box where the token goes, and say so. */
function needsToken(given) {
  $("token-box").open = true;
  $("token").focus();
  return new Error(
    given
      ? "The servers do not know this token. Check it, or ask the operator for a new one."
      : "The servers answer only clients they know: paste your access token below and ask again.",
  );
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

function showAnswer(values, milliseconds, answers) {
  const { best, inRange } = readAnswer(values, program.info);
  const names = program.info.class_names || [];
  const label = (index) => String(names[index] ?? index);
  if (!inRange) {
    $("bars").replaceChildren();
    say("No answer: this image is too far from those the model was made for; its numbers ran out of range.", true);
  } else {
    $("bars").replaceChildren(...best.map(([index, probability]) => bar(label(index), probability)));
    const [[first, probability]] = best;
    say(`The answer: ${label(first)}${probability === null ? "" : `, ${percent(probability)} sure`}.`);
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

const percent = (share) => `${(100 * share).toFixed(1)} %`;

/** One class; where its probability is not known, its name alone. */
function bar(name, probability) {
  const item = document.createElement("li");
  const label = text("span", name);
  label.className = "name";
  item.append(label);
  if (probability === null) return item;
  const track = text("div", "");
  track.className = "track";
  const fill = text("div", "");
  fill.className = "fill";
  fill.style.width = `${100 * probability}%`;
  track.append(fill);
  const value = text("span", percent(probability));
  value.className = "value";
  item.append(track, value);
  return item;
}

function text(kind, content) {
  const element = document.createElement(kind);
  element.textContent = content;
  return element;
}

function showViews(values, shares) {
  paint($("view-own"), program.input.shape, values.map((value) => 255 * value));
  shares.forEach((share, party) => paint($(`view-${party}`), program.input.shape, Array.from(share, (word) => Number(word >> 56n))));
  $("seen").hidden = false;
}

/** Paint one plane (grey) or three (colour) of numbers 0 to 255. */
function paint(canvas, [channels, height, width], values) {
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  for (let i = 0; i < width * height; i++) {
    for (let c = 0; c < 3; c++) image.data[4 * i + c] = values[channels === 3 ? c * width * height + i : i];
    image.data[4 * i + 3] = 255;
  }
  context.putImageData(image, 0, 0);
}

start();
