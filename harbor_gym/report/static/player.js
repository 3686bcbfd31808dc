"use strict";
// Plays asciicast v2 recordings whose output is plain text, new lines and a cleared screen. Everything else a terminal
// could execute is skipped; nothing of a recording ever becomes markup.

const WIDE = /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6]|[\ud83c-\ud83e\ud840-\ud87f]/;
const SEQUENCE = /\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_a-z]|\r|\n|\x08|\t|[\x00-\x1f\x7f-\x9f]|[^\x00-\x1f\x7f-\x9f]/gu;

class Screen {
  constructor(columns, rows) {
    this.columns = columns;
    this.rows = rows;
    this.clear();
  }

  clear() {
    this.lines = [""];
    this.row = 0;
    this.column = 0;
    this.cells = 0;
  }

  write(text) {
    for (const [piece] of text.matchAll(SEQUENCE)) this.put(piece);
  }

  put(piece) {
    if (piece === "\n") this.newLine();
    else if (piece === "\r") this.home();
    else if (piece === "\t") this.tab();
    else if (piece === "\x1b[2J") this.clear();
    else if (piece === "\x1b[H") { this.row = 0; this.home(); }
    else if (piece >= " " && piece !== "\x7f") this.print(piece);
  }

  home() {
    this.column = 0;
    this.cells = 0;
  }

  // A tab goes to the next stop, never to the next line, and leaves alone what it passes.
  tab() {
    const stop = Math.min(this.cells - (this.cells % 8) + 8, this.columns - 1);
    for (; this.cells < stop; this.cells += 1, this.column += 1) {
      if ([...this.lines[this.row]].length <= this.column) this.lines[this.row] += " ";
    }
  }

  newLine() {
    if (this.row === this.rows - 1) this.lines.shift();
    else this.row += 1;
    if (this.lines[this.row] === undefined) this.lines[this.row] = "";
    const text = [...this.lines[this.row]];
    if (text.length < this.column) this.lines[this.row] += " ".repeat(this.column - text.length);
  }

  print(character) {
    const width = WIDE.test(character) ? 2 : 1;
    if (this.cells + width > this.columns) {
      this.home();
      this.newLine();
    }
    const text = [...this.lines[this.row]];
    text[this.column] = character;
    this.lines[this.row] = text.join("");
    this.column += 1;
    this.cells += width;
  }

  text() {
    return this.lines.map((line) => line.trimEnd()).join("\n");
  }
}

// A recording: its events with pauses cut to the header's limit. A line that is broken off ends it.
function readCast(text) {
  const lines = text.split("\n").filter((line) => line);
  const header = JSON.parse(lines[0]);
  const events = [];
  let at = 0;
  let before = 0;
  for (const line of lines.slice(1)) {
    let event;
    try { event = JSON.parse(line); } catch { break; }
    if (!Array.isArray(event) || typeof event[0] !== "number" || typeof event[2] !== "string") break;
    at += Math.min(Math.max(0, event[0] - before), header.idle_time_limit || Infinity);
    before = event[0];
    events.push({ at, kind: event[1], data: event[2] });
  }
  const cast = { columns: header.width, rows: header.height, events, seconds: at, usedRows: 0 };
  const screen = new Screen(cast.columns, cast.rows);
  for (const event of events) {
    if (event.kind === "o") screen.write(event.data);
    cast.usedRows = Math.max(cast.usedRows, screen.lines.length);
  }
  return cast;
}

// What the screen shows after the first `count` events.
function screenAfter(cast, count) {
  const screen = new Screen(cast.columns, cast.rows);
  for (const event of cast.events.slice(0, count)) if (event.kind === "o") screen.write(event.data);
  return screen.text();
}

if (typeof module !== "undefined") module.exports = { readCast, screenAfter };
