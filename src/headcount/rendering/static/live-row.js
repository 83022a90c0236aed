// Models that classify a row of numbers, side by side on the same row: change its length, drag a number, break a pair.

const CHART_HEIGHT = 120; // pixels
const STRIP_HEIGHT = 36;

class LiveRow extends Live {
  build() {
    this.longest = Math.min(...this.models.map(({ nPositions }) => nPositions));
    const row = this.reader?.start?.() ?? this.header.examples[0][1];
    const named = this.model.named.find((text) => this.read(text).source);
    Object.assign(this.state, { text: named ?? row.join(" "), donor: this.header.examples[0][0] });
    this.place = 0;
    this.error = make("p", { class: "note error", role: "alert", hidden: true });
    this.said = make("p", { class: "said", "aria-live": "polite" });
    this.rows = make("tbody");
    this.board = new HeadBoard(
      this.name,
      (short) => this.toggle(short),
      () => this.namesOf(),
    );
    const table = make("table", { class: "rivals" }, this.rowOfHeadings(), this.rows);
    this.boardTitle = make("h3", { class: "board-title" });
    const parts = [this.chart(), this.typing(), this.buttons()];
    this.heads = make(
      "details",
      { class: "row-heads" },
      make("summary", {}, this.boardTitle),
      this.buildControls(),
      this.board.element,
    );
    this.heads.addEventListener("toggle", () => this.showHeads());
    this.root.append(...parts, this.error, make("div", { class: "scroll" }, table), this.said, this.heads);
    this.broken = new Map();
    for (let i = 1; i < this.models.length; i += 1) {
      const note = (error) => this.broken.set(i, error.message);
      this.engineOf(i)
        .catch(note)
        .then(() => this.update());
    }
  }

  rowOfHeadings() {
    const [first, last] = [this.header.classes[0], this.header.classes.at(-1)];
    const evidence = `evidence from each place: bars up for ${first}, down for ${last}`;
    return make(
      "thead",
      {},
      make("tr", {}, ...["model", "answer", evidence, "verified"].map((words) => make("th", { scope: "col" }, words))),
    );
  }

  // --- the row -------------------------------------------------------------------------------------------------------

  chart() {
    this.canvas = make("canvas", {
      class: "row-chart",
      role: "img",
      "aria-label": "The row of numbers as bars; drag a bar to change its number",
    });
    const drag = (event) => {
      const { left, top, width, height } = this.canvas.getBoundingClientRect();
      const { source } = this.example;
      const clamp = (value, most) => Math.max(0, Math.min(most, value));
      this.place = clamp(Math.floor(((event.clientX - left) / width) * source.length), source.length - 1);
      const value = clamp(Math.round((1 - (event.clientY - top - 4) / (height - 8)) * this.highest), this.highest);
      if (source[this.place] !== value) this.setNumber(this.place, value, "drag");
    };
    this.canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      this.canvas.setPointerCapture(event.pointerId);
      this.isDragged = true;
      drag(event);
    });
    this.canvas.addEventListener("pointermove", (event) => this.isDragged && drag(event));
    for (const kind of ["pointerup", "pointercancel"]) {
      this.canvas.addEventListener(kind, () => {
        this.isDragged = false;
        this.lastKind = null; // the next drag is undone by itself
      });
    }
    new ResizeObserver(() => this.example && this.drawRow()).observe(this.canvas);
    onThemeChange(() => this.example && this.drawAll());
    return this.canvas;
  }

  get highest() {
    return this.reader?.highest ?? Math.max(...this.header.examples.flatMap(([, source]) => source));
  }

  typing() {
    const id = (name) => `${this.name}-${name}`;
    this.input = make("input", {
      id: id("on"),
      type: "text",
      class: "typed wide",
      autocomplete: "off",
      spellcheck: "false",
    });
    this.input.addEventListener("input", () => this.type(this.input.value));
    this.length = make("input", { id: id("length"), type: "range", min: 1, max: this.longest });
    this.length.addEventListener("input", () => this.setLength(Number(this.length.value)));
    this.lengthShown = make("span");
    this.lengthNumber = make("input", {
      type: "number",
      min: 1,
      max: this.longest,
      class: "few",
      "aria-label": "Length as a number",
    });
    this.lengthNumber.addEventListener("input", () => {
      const length = Number(this.lengthNumber.value);
      if (Number.isInteger(length) && length >= 1 && length <= this.longest) this.setLength(length);
    });
    this.spot = make("input", { id: id("place"), type: "number", min: 1, max: 1, class: "few" });
    this.value = make("input", { id: id("value"), type: "number", min: 0, max: this.highest, class: "few" });
    this.spot.addEventListener("input", () => this.choosePlace(Number(this.spot.value) - 1));
    this.value.addEventListener("input", () => this.setValue(this.value.value));
    const label = (input, words, ...more) => make("label", { for: input.id }, `${words} `, input, ...more);
    const length = make("span", {}, label(this.length, "Length"), " ", this.lengthNumber, this.lengthShown);
    length.hidden = !this.reader?.resize;
    return make(
      "div",
      { class: "ask" },
      label(this.input, capital(this.header.words.symbols)),
      length,
      label(this.spot, "Place"),
      label(this.value, "Number"),
    );
  }

  buttons() {
    const acts = (this.reader?.actions ?? []).map(({ label, act }) =>
      this.buttonOf(label, () => this.setRow(act(this.example.source))),
    );
    const named = new Map(
      this.models.flatMap(({ named = [] }) =>
        named.map((text) => [text, this.buttonOf(cut(text, 30), () => this.type(text))]),
      ),
    );
    return make("div", { class: "live-buttons" }, ...acts, ...named.values());
  }

  read(text) {
    const example = super.read(text);
    if (example.source?.length > this.longest)
      return { error: `The models here take at most ${this.longest} ${this.header.words.symbols}.` };
    return example;
  }

  type(text) {
    const example = this.read(text);
    if (example.error) return this.complain(example.error);
    this.setRow(example.source);
  }

  setRow(row) {
    if (row.join(" ") === this.state.text) return this.complain("");
    this.remember();
    this.state.text = row.join(" ");
    this.update();
  }

  setLength(length) {
    this.remember("length");
    this.state.text = this.reader.resize(this.example.source, length).join(" ");
    this.update();
  }

  setNumber(place, value, kind) {
    this.remember(kind);
    this.state.text = this.example.source.map((each, i) => (i === place ? value : each)).join(" ");
    this.update();
  }

  choosePlace(place) {
    if (!(place in this.example.source)) return;
    this.place = place;
    this.drawRow();
    this.value.value = this.example.source[place];
  }

  setValue(text) {
    const value = Number(text);
    if (!text.trim() || !Number.isInteger(value) || value < 0 || value > this.highest) return;
    this.setNumber(this.place, value, "value");
  }

  // --- answers -------------------------------------------------------------------------------------------------------

  run(engine, { source }, how = {}) {
    return engine.classify(source, how);
  }

  isRight(run, [right]) {
    return largest(run.logits) === right;
  }

  namesOf() {
    const numbers = this.example.source.map((token) => this.header.tokens[token]);
    return [numbers, numbers];
  }

  /** Mean outputs are known for the training lengths only. */
  get by() {
    const isTooLong = this.example?.source.length > this.model.nMean;
    return this.state.by === "mean" && isTooLong ? "zero" : this.state.by;
  }

  update() {
    this.example = this.read(this.state.text);
    const { length } = this.example.source;
    this.place = Math.min(this.place, length - 1);
    const isZeroInstead = this.state.replaced.size && this.by !== this.state.by;
    const words = `Mean outputs are known for ${this.model.nMean} places only. On longer rows, zeros are used instead.`;
    this.complain(isZeroInstead ? words : "");
    this.clean = this.models.map((_, i) => {
      const isTraced = i === this.state.model;
      return this.engines[i] && this.run(this.engines[i], this.example, { isTraced });
    });
    const others = this.state.replaced.size ? this.replacements(this.engine, this.read(this.state.donor).source) : null;
    this.now = others ? this.run(this.engine, this.example, { replaced: others }) : this.clean[this.state.model];
    const number = this.example.source[this.place];
    const fields = [
      [this.input, this.example.text],
      [this.length, length],
      [this.lengthNumber, length],
      [this.spot, this.place + 1],
      [this.value, number],
    ];
    this.spot.max = length;
    for (const [field, value] of fields) if (document.activeElement !== field) field.value = value;
    const [shortest, longest] = this.header.trainedLengths;
    const isTrained = length >= shortest && length <= longest;
    this.lengthShown.textContent = isTrained ? "" : ` (trained on ${shortest} to ${longest})`;
    this.showControls();
    this.showAnswers();
    this.drawRow();
    this.boardTitle.textContent = `The heads of ${this.model.title}: switch them off`;
    this.showHeads();
    this.showAddress();
    this.count();
  }

  /** The maps of heads are painted while they are open. */
  showHeads() {
    if (!this.heads.open) return;
    this.board.show(this.now.heads(), this.clean[this.state.model].heads(), this.replacedNow, null);
    this.board.onResize();
  }

  showAnswers() {
    const rows = this.models.map((model, i) => this.rowOf(model, i));
    const focused = [...this.rows.querySelectorAll("button")].indexOf(document.activeElement);
    this.rows.replaceChildren(...rows.map(({ element }) => element));
    if (focused >= 0) this.rows.querySelectorAll("button")[focused]?.focus();
    this.strips = rows.filter(({ run }) => run);
    this.drawStrips();
    const truth = this.header.classes[this.example.right[0]];
    const wrong = rows.filter(({ run }) => run && !this.isRight(run, this.example.right)).map(({ words }) => words);
    const n = rows.filter(({ run }) => run).length;
    const many = `${n - wrong.length} of ${n} models are right`;
    const one = wrong.length ? "the model is wrong" : "the model is right";
    const others = wrong.length && this.models.length > 1 ? `; wrong: ${listed(wrong)}` : "";
    const words = `The row is ${truth}: ${this.models.length > 1 ? many : one}${others}.`;
    if (this.said.textContent !== words) this.said.textContent = words;
  }

  rowOf(model, i) {
    const isChosen = i === this.state.model;
    const isChanged = isChosen && this.state.replaced.size > 0;
    const run = isChanged ? this.now : this.clean[i];
    const words = isChanged ? `${model.title} ${this.change}` : model.title;
    const choose = make(
      "button",
      { type: "button", "aria-pressed": String(isChosen), title: "Show the heads of this model" },
      words,
    );
    choose.addEventListener("click", () => this.chooseModel(i));
    const canvas = make("canvas", { class: "strip-chart", role: "img" });
    const cells = [make("th", { scope: "row" }, choose)];
    if (!run) cells.push(make("td", {}, this.broken.has(i) ? `not loaded: ${this.broken.get(i)}` : "…"), make("td"));
    else {
      const [answer, isRight] = [largest(run.logits), this.isRight(run, this.example.right)];
      const chance = percent(softmax(run.logits)[answer]);
      const verdict = make("span", { class: `verdict ${isRight ? "is-right" : "is-wrong"}` }, isRight ? "✓" : "✗");
      cells.push(
        make("td", {}, verdict, ` ${this.header.classes[answer]} `, make("small", {}, chance)),
        make("td", { class: "strip-cell" }, canvas),
      );
      const most = run.evidence.reduce(
        (best, value, at) => (Math.abs(value) > Math.abs(run.evidence[best]) ? at : best),
        0,
      );
      canvas.setAttribute("aria-label", `strongest evidence at place ${most + 1}, number ${this.example.source[most]}`);
    }
    const mistakes = model.wrong.map((text, at) => this.buttonOf(`mistake ${at + 1}`, () => this.showMistake(i, text)));
    cells.push(make("td", { class: "known" }, ...mistakes, model.proof));
    return { element: make("tr", {}, ...cells), run, canvas, words: model.title };
  }

  async showMistake(i, text) {
    if (i !== this.state.model) await this.chooseModel(i);
    this.type(text);
  }

  // --- pictures ------------------------------------------------------------------------------------------------------

  drawAll() {
    this.drawRow();
    this.drawStrips();
  }

  drawRow() {
    const { source } = this.example;
    const marks = new Set((this.reader?.marks?.(source) ?? []).flatMap((i) => [i, i + 1]));
    drawBars(
      this.canvas,
      CHART_HEIGHT,
      source.map((value, i) => ({
        from: 0,
        to: value / this.highest,
        isMarked: marks.has(i),
        isChosen: i === this.place,
        text: String(value),
      })),
      0,
    );
  }

  drawStrips() {
    for (const { run, canvas } of this.strips ?? []) {
      const most = Math.max(1e-6, ...run.evidence.map(Math.abs));
      drawBars(
        canvas,
        STRIP_HEIGHT,
        [...run.evidence].map((value) => ({ from: 0.5, to: 0.5 + value / most / 2, isMarked: value > 0 })),
        0.5,
      );
    }
  }
}

/** A colour that the style names, in the theme of the moment. */
function colourOf(element, name) {
  element.style.color = `var(${name})`;
  const { color } = getComputedStyle(element);
  element.style.color = "";
  return color;
}

/** Bars between shares of the height; a line at the base. */
function drawBars(canvas, height, bars, base) {
  const width = canvas.clientWidth || 600;
  [canvas.width, canvas.height] = [width * devicePixelRatio, height * devicePixelRatio];
  const ink = canvas.getContext("2d");
  ink.scale(devicePixelRatio, devicePixelRatio);
  const [each, yOf] = [width / bars.length, (share) => 4 + (1 - share) * (height - 8)];
  const [plain, marked, chosen, line] = ["--bar", "--bar-marked", "--bar-chosen", "--bar-line"].map((name) =>
    colourOf(canvas, name),
  );
  bars.forEach(({ from, to, isMarked, isChosen, text }, i) => {
    ink.fillStyle = isMarked ? marked : isChosen ? chosen : plain;
    const [top, bottom] = [yOf(Math.max(from, to)), yOf(Math.min(from, to))];
    ink.fillRect(i * each + Math.min(1, each * 0.1), top, each - Math.min(2, each * 0.2), Math.max(2, bottom - top));
    if (!text || each < 22) return;
    ink.fillStyle = line;
    ink.font = `12px ${getComputedStyle(canvas).fontFamily}`;
    ink.textAlign = "center";
    ink.fillText(text, (i + 0.5) * each, top > 18 ? top - 3 : top + 14);
  });
  ink.fillStyle = line;
  ink.fillRect(0, yOf(base), width, 1);
}
