// One head, large: its weights with tokens on both axes, a cursor for pointers and keys, and its tokens as text.

const LARGEST_CELL = 56;
const ENLARGED_CELL = 96;
const ROOMY_CELL = 30; // has its weight written into it
const LEAST_SIDE = 150; // of a map, in pixels: with fewer tokens than that on one axis its cells are no squares
const LONGEST_LABEL = 84;
const LABEL_LINE = 13;
const JUMP = 10; // cells, by Page Up and Page Down
const pen = document.createElement("canvas").getContext("2d"); // measures labels
const HINT = "Point at a cell, or touch it, to read its weight; arrow keys move from cell to cell.";

class LargeView {
  /** `moved(row, column)` is told where a reader wants the cursor, null for nowhere. */
  constructor(moved, enlarged) {
    this.moved = moved;
    this.view = null;
    this.mark = { row: null, column: null };
    this.build(enlarged);
    this.listen();
  }

  build(enlarged) {
    this.title = make("h3");
    this.about = make("p", { class: "about" });
    this.enlarge = make("button", { type: "button", class: "enlarge", "aria-pressed": "false" }, "Enlarge");
    this.enlarge.addEventListener("click", enlarged);
    this.canvas = make("canvas", { "aria-hidden": "true" });
    this.numbers = make("canvas", { class: "numbers", "aria-hidden": "true" });
    this.marks = { row: make("div", { class: "row-mark" }), column: make("div", { class: "column-mark" }) };
    this.cells = make("div", { class: "cells", tabindex: "0", role: "application" });
    this.cells.append(this.canvas, this.numbers, ...Object.values(this.marks));
    this.labels = { row: make("div", { class: "labels rows" }), column: make("div", { class: "labels columns" }) };
    this.here = { row: make("span", { class: "here" }), column: make("span", { class: "here" }) };
    this.readout = make("p", { class: "readout", "aria-live": "polite" }, HINT);
    this.strips = { row: stripOf("Queries"), column: stripOf("Keys") };
    const query = make("span", { class: "axis rows" }, "query");
    const key = make("span", { class: "axis columns" }, "key (attended to)");
    this.map = make("div", { class: "map" }, query, this.labels.row, this.cells, this.labels.column, key);
    this.element = make(
      "div",
      { class: "large", role: "group", "aria-label": "One head, enlarged" },
      make("div", { class: "large-title" }, this.title, this.about, this.enlarge),
      this.map,
      this.readout,
      this.strips.row.element,
      this.strips.column.element,
    );
  }

  /** `view` has a title, what it is about, a matrix, and the tokens of its queries and keys. */
  show(view, palette) {
    const tokensAreNew = this.view?.queries !== view.queries || this.view?.keys !== view.keys;
    [this.view, this.palette] = [view, palette];
    this.title.textContent = view.title;
    this.about.textContent = view.about;
    const words = `Attention weights of ${view.title}, ${view.about}. Arrow keys move from cell to cell.`;
    this.cells.setAttribute("aria-label", words);
    if (tokensAreNew) this.fillStrips();
    this.resize();
  }

  fillStrips() {
    this.strips.row.fill(this.view.queries);
    this.strips.column.fill(this.view.keys);
  }

  // --- sizes and labels ----------------------------------------------------------------------------------------------

  /** Also when the window changes: cells are as large as there is room for. */
  resize() {
    if (!this.view || !this.element.clientWidth) return;
    const { rows, columns } = this.view.matrix;
    const margin = Math.min(LONGEST_LABEL, this.widest(this.view.queries)) + 6;
    const largest = this.isEnlarged ? ENLARGED_CELL : LARGEST_CELL;
    this.cell = sizeOfCells(rows, columns, this.element.clientWidth - margin - 24, this.roomDown(), largest);
    this.map.style.gridTemplateColumns = `auto ${margin}px ${columns * this.cell.width}px`;
    this.cells.style.width = `${columns * this.cell.width}px`;
    this.cells.style.height = `${rows * this.cell.height}px`;
    this.label("row", this.view.queries, this.cell.height, false);
    const widest = this.widest(this.view.keys.filter((_, i) => i % stepOf(this.cell.width) === 0));
    const isUpright = widest > this.cell.width - 4;
    this.labels.column.style.height = `${isUpright ? Math.min(LONGEST_LABEL, widest) + 4 : LABEL_LINE + 6}px`;
    this.label("column", this.view.keys, this.cell.width, isUpright);
    paint(this.canvas, this.view.matrix, this.palette);
    this.writeNumbers();
    this.drawMarks();
  }

  /** Beside the heads all of the view stays in the window, whatever is scrolled. */
  roomDown() {
    const isBeside = this.element.parentElement.matches(".beside");
    return Math.max(260, isBeside ? window.innerHeight - 400 : 0.8 * window.innerHeight);
  }

  /** All but zeros, which would hide the others. */
  writeNumbers() {
    const { matrix } = this.view;
    const { width, height } = this.cell;
    this.numbers.hidden = Math.min(width, height) < ROOMY_CELL;
    if (this.numbers.hidden) return;
    this.numbers.width = matrix.columns * width * devicePixelRatio;
    this.numbers.height = matrix.rows * height * devicePixelRatio;
    const ink = this.numbers.getContext("2d");
    ink.scale(devicePixelRatio, devicePixelRatio);
    ink.font = `11px ${getComputedStyle(this.cells).fontFamily}`;
    [ink.textAlign, ink.textBaseline] = ["center", "middle"];
    matrix.bytes.forEach((weight, i) => {
      ink.fillStyle = inkOn(this.palette.channels[weight]);
      const [row, column] = [Math.floor(i / matrix.columns), i % matrix.columns];
      if (weight) ink.fillText(inDigits(weight), (column + 0.5) * width, (row + 0.5) * height);
    });
  }

  /** Of some tokens, as their labels are set. */
  widest(tokens) {
    const { fontSize, fontFamily } = getComputedStyle(this.labels.row);
    pen.font = `600 ${fontSize} ${fontFamily}`;
    return Math.ceil(Math.max(...tokens.map((token) => pen.measureText(cut(token, 40)).width)));
  }

  /** As many labels as fit; the one where the cursor is comes on top of them. */
  label(axis, tokens, size, isUpright) {
    const step = stepOf(size);
    const shown = tokens.flatMap((token, i) => (i % step ? [] : [this.placed(make("span", {}, token), axis, i, size)]));
    this.labels[axis].classList.toggle("upright", isUpright);
    this.labels[axis].replaceChildren(...shown, this.here[axis]);
  }

  placed(label, axis, i, size) {
    label.style[axis === "row" ? "top" : "left"] = `${(i + 0.5) * size}px`;
    return label;
  }

  // --- the cursor ----------------------------------------------------------------------------------------------------

  /** Either may be null: another head's cursor may share but one axis with this one. */
  point(row, column) {
    this.mark = { row, column };
    this.drawMarks();
  }

  drawMarks() {
    const { row, column } = this.mark;
    if (!this.cell) return;
    this.drawMark("row", row, this.view.queries, this.cell.height, "top", "height");
    this.drawMark("column", column, this.view.keys, this.cell.width, "left", "width");
    this.readout.textContent = row === null || column === null ? HINT : this.sentence();
    this.strips.row.mark(row);
    this.strips.column.mark(column);
    this.strips.column.shade(row === null ? null : this.weightsOf(row), this.palette);
  }

  drawMark(axis, i, tokens, size, start, extent) {
    const [mark, here] = [this.marks[axis], this.here[axis]];
    mark.hidden = here.hidden = i === null;
    if (i === null) return;
    mark.style[start] = `${i * size}px`;
    mark.style[extent] = `${size}px`;
    here.textContent = tokens[i];
    this.placed(here, axis, i, size);
  }

  weightsOf(row) {
    const { bytes, columns } = this.view.matrix;
    return bytes.subarray(row * columns, (row + 1) * columns);
  }

  sentence() {
    const { row, column } = this.mark;
    return sentenceOf(this.view, row, column);
  }

  // --- what readers do -----------------------------------------------------------------------------------------------

  listen() {
    const follow = (event) => {
      const [row, column] = cellAt(event, this.cells, this.view.matrix);
      this.moved(row, column);
      if (event.pointerType !== "touch") showTip(this.sentence(), event.clientX, event.clientY);
    };
    this.cells.addEventListener("pointermove", follow);
    this.cells.addEventListener("pointerdown", follow);
    this.cells.addEventListener("pointerleave", hideTip);
    this.cells.addEventListener("keydown", (event) => this.onKey(event));
    this.strips.row.onPoint((row) => {
      this.moved(row, this.mark.column ?? largestInRow(this.view.matrix, row));
    });
    this.strips.column.onPoint((column) => {
      this.moved(this.mark.row ?? largestInColumn(this.view.matrix, column), column);
    });
  }

  onKey(event) {
    const { rows, columns } = this.view.matrix;
    const move = MOVES[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey || !move) return;
    event.preventDefault();
    hideTip();
    const from = this.mark.row === null || this.mark.column === null ? null : [this.mark.row, this.mark.column];
    const to = move(from ?? [0, 0], rows, columns);
    if (to === null) this.moved(null, null);
    else if (from === null) this.moved(0, 0); // the first key only shows where the cursor is
    else this.moved(within(to[0], rows), within(to[1], columns));
  }
}

const MOVES = {
  ArrowUp: ([row, column]) => [row - 1, column],
  ArrowDown: ([row, column]) => [row + 1, column],
  ArrowLeft: ([row, column]) => [row, column - 1],
  ArrowRight: ([row, column]) => [row, column + 1],
  PageUp: ([row, column]) => [row - JUMP, column],
  PageDown: ([row, column]) => [row + JUMP, column],
  Home: ([row]) => [row, 0],
  End: ([row], _, columns) => [row, columns - 1],
  Escape: () => null,
};

/** Of so many cells of this size one has room for a label. */
const stepOf = (size) => Math.ceil(LABEL_LINE / size);

const within = (i, n) => Math.max(0, Math.min(i, n - 1));

/** Squares where that leaves both sides legible; whole pixels unless there are many cells. */
function sizeOfCells(rows, columns, room, roomDown, largest) {
  const widest = Math.min(largest, room / columns);
  const highest = Math.min(largest, roomDown / rows);
  const width = Math.min(widest, Math.max(highest, LEAST_SIDE / columns));
  const height = Math.min(highest, Math.max(widest, LEAST_SIDE / rows));
  const whole = (size) => (size >= 4 ? Math.floor(size) : size);
  return { width: whole(width), height: whole(height) };
}

/** [row, column] under a pointer. */
function cellAt(event, element, { rows, columns }) {
  const box = element.getBoundingClientRect();
  const row = Math.floor(((event.clientY - box.top) / box.height) * rows);
  const column = Math.floor(((event.clientX - box.left) / box.width) * columns);
  return [within(row, rows), within(column, columns)];
}

function sentenceOf({ matrix, queryNames, keyNames }, row, column) {
  const weight = inDigits(weightAt(matrix, row, column));
  return `query ${queryNames[row]} attends to key ${keyNames[column]}: ${weight}`;
}

/** The tokens of an axis as running text, one of them marked, all of them shaded by what goes to them. */
function stripOf(name) {
  const tokens = make("div", { class: "tokens", role: "group", "aria-label": name });
  boxSizes.observe(tokens);
  const label = make("span", { class: "strip-name", "aria-hidden": "true" }, name);
  return {
    element: make("div", { class: "strip" }, label, tokens),
    fill(texts) {
      tokens.replaceChildren(...texts.map((text) => make("span", {}, text)));
      setStop(tokens);
    },
    mark(i) {
      tokens.querySelector(".on")?.classList.remove("on");
      if (i === null) return;
      const token = tokens.children[i];
      token.classList.add("on");
      const down = token.offsetTop - tokens.scrollTop;
      const isSeen = down >= 0 && down + token.offsetHeight <= tokens.clientHeight;
      if (!isSeen) tokens.scrollTop = token.offsetTop - tokens.clientHeight / 2;
    },
    shade(weights, palette) {
      [...tokens.children].forEach((token, i) => {
        const channels = weights ? palette.channels[weights[i]] : null;
        token.style.backgroundColor = channels ? `rgb(${channels.join(" ")})` : "";
        token.style.color = channels ? inkOn(channels) : "";
      });
    },
    onPoint(act) {
      const follow = (event) => {
        const i = [...tokens.children].indexOf(event.target);
        if (i >= 0) act(i);
      };
      tokens.addEventListener("pointerover", follow);
      tokens.addEventListener("pointerdown", follow);
    },
  };
}
