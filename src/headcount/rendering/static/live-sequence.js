// A model that writes an answer token by token, such as an adder.

class LiveSequence extends Live {
  build() {
    const { examples, words, answerPlaces } = this.header;
    Object.assign(this.state, { text: this.firstText(0), donor: this.firstText(1) });
    Object.assign(this, { step: null, stepRow: 0 });
    this.input = make("input", {
      id: `${this.name}-on`,
      type: "text",
      class: "typed",
      autocomplete: "off",
      spellcheck: "false",
      list: `${this.name}-some`,
    });
    this.input.addEventListener("input", () => this.type(this.input.value));
    const some = examples.slice(0, 40).map(([text]) => make("option", { value: text }));
    this.chips = make("span", { class: "chips" });
    this.error = make("p", { class: "note error", role: "alert", hidden: true });
    this.table = make("table", { class: "answers" });
    this.choices = make("p", { class: "choices", "aria-live": "polite" });
    this.said = make("p", { class: "said", "aria-live": "polite" });
    const label = make("label", { for: this.input.id }, capital(words.example));
    const namesOf = (site) => this.namesOf(site);
    this.board = new HeadBoard(this.name, (short) => this.toggle(short), namesOf);
    this.root.append(
      ...this.modelPicker(),
      make(
        "div",
        { class: "ask" },
        label,
        this.input,
        this.chips,
        make("datalist", { id: `${this.name}-some` }, ...some),
      ),
      this.error,
      make("div", { class: "scroll" }, this.table),
      this.said,
      this.choices,
      this.buildControls(),
      this.board.element,
    );
    this.places = answerPlaces;
  }

  modelPicker() {
    if (this.models.length < 2) return [];
    const options = this.models.map(({ title }, i) => make("option", { value: i }, title));
    this.picker = make("select", { id: `${this.name}-model` }, ...options);
    this.picker.addEventListener("change", () => this.chooseModel(Number(this.picker.value)));
    return [make("p", {}, make("label", { for: this.picker.id }, "Model "), this.picker)];
  }

  onModel() {
    super.onModel();
    if (this.picker) this.picker.value = this.state.model;
    this.showChips();
  }

  type(text) {
    const example = this.read(text);
    if (example.error) return this.complain(example.error);
    this.complain("");
    if (example.text === this.state.text) return;
    this.remember("typing");
    this.state.text = example.text;
    this.update();
  }

  run(engine, { source }, how = {}) {
    const { first, n } = this.header.start;
    return engine.answer(source, { first, n, ...how });
  }

  answerOf(run) {
    return [...this.header.start.given, ...run.tokens];
  }

  isRight(run, right) {
    return this.answerOf(run).every((token, i) => token === right[i]);
  }

  update() {
    const example = this.read(this.state.text);
    this.whole = this.run(this.engine, example);
    const { replaced } = this.state;
    const others = replaced.size ? this.replacements(this.engine, this.read(this.state.donor).source) : null;
    this.now = others ? this.run(this.engine, example, { replaced: others }) : this.whole;
    this.example = example;
    if (document.activeElement !== this.input) this.input.value = example.text;
    this.showControls();
    this.showAnswers();
    this.paintHeads();
    this.showAddress();
    this.count();
  }

  paintHeads() {
    const step = this.step === null ? null : this.step - this.header.start.given.length;
    this.board.show(this.now.heads(), this.whole.heads(), this.replacedNow, step);
    this.board.onResize();
  }

  showChips() {
    const { named, wrong, proof } = this.model;
    const buttons = [...named.map((text) => [text, text]), ...wrong.map((text) => [text, `${text} (a mistake)`])];
    this.chips.replaceChildren(...buttons.map(([text, label]) => this.buttonOf(label, () => this.type(text))), proof);
  }

  namesOf({ stack, kind }) {
    const { tokens, start } = this.header;
    const source = this.example.source.map((token) => tokens[token]);
    const written = this.places.slice(start.given.length).map((place) => `${place}`);
    const fed = [start.first, ...this.now.tokens.slice(0, -1)].map((token) => tokens[token]);
    return stack === "encoder" ? [source, source] : [written, kind === "cross" ? source : fed];
  }

  // --- answers -------------------------------------------------------------------------------------------------------

  showAnswers() {
    const { right } = this.example;
    const rows = [
      ["All heads on", this.whole],
      ...(this.state.replaced.size ? [[capital(this.change), this.now]] : []),
    ];
    const heads = make(
      "tr",
      {},
      make("td"),
      ...this.places.map((place) => make("th", { scope: "col" }, place)),
      make("td"),
    );
    this.table.replaceChildren(
      make("thead", {}, heads),
      make("tbody", {}, ...rows.map(([words, run], row) => this.answerRow(words, run, right, row))),
    );
    const verdict = (run) => (this.isRight(run, right) ? "right" : `wrong: it should be ${this.shown(right)}`);
    const sentences = rows.map(
      ([words, run]) => `${words}: ${this.example.text} = ${this.shown(this.answerOf(run))}, ${verdict(run)}.`,
    );
    const words = sentences.at(-1);
    if (this.said.textContent !== words) this.said.textContent = words;
    this.showChoices();
  }

  shown(tokens) {
    return this.reader?.show
      ? this.reader.show(tokens.map((token) => this.header.tokens[token]))
      : tokens.map((token) => this.header.tokens[token]).join(" ");
  }

  answerRow(words, run, right, row) {
    const [answer, whole, { length: nGiven }] = [
      this.answerOf(run),
      this.answerOf(this.whole),
      this.header.start.given,
    ];
    const cells = answer.map((token, i) => {
      const chance = i < nGiven ? null : softmax(run.logits[i - nGiven])[token];
      const classes = [token === right[i] ? "" : "wrong", token === whole[i] ? "" : "changed"]
        .filter(Boolean)
        .join(" ");
      const shown = this.header.tokens[token];
      if (chance === null)
        return make("td", {}, make("span", { class: `digit ${classes}` }, shown, make("small", {}, "given")));
      const isChosen = this.step === i && this.stepRow === row;
      const button = make(
        "button",
        { type: "button", class: `digit ${classes}`, "aria-pressed": String(isChosen) },
        shown,
      );
      button.append(make("small", {}, percent(chance, chance > 0.995 ? 0 : 1)));
      button.addEventListener("click", () => this.stepTo(isChosen ? null : i, row, i - nGiven));
      return make("td", {}, button);
    });
    const isRight = this.isRight(run, right);
    const verdict = make(
      "td",
      { class: `verdict ${isRight ? "is-right" : "is-wrong"}` },
      isRight ? "✓ right" : "✗ wrong",
    );
    return make("tr", {}, make("th", { scope: "row" }, words), ...cells, verdict);
  }

  /** One step of decoding: what else might have been written there, and which rows of the maps wrote it. */
  stepTo(step, row = 0, at = 0) {
    Object.assign(this, { step, stepRow: row });
    this.showAnswers();
    this.paintHeads();
    this.table.tBodies[0].rows[row]?.querySelectorAll("button.digit")[at]?.focus();
  }

  showChoices() {
    const { tokens, start, words } = this.header;
    const at = this.step === null ? -1 : this.step - start.given.length;
    if (at < 0) {
      this.choices.textContent = `Choose a ${words.place} of the answer to see the model's most probable tokens there.`;
      return;
    }
    const run = this.stepRow === 0 ? this.whole : this.now;
    const chances = softmax(run.logits[at])
      .map((chance, token) => [chance, tokens[token]])
      .sort(([a], [b]) => b - a);
    const few = chances.slice(0, 3).map(([chance, token]) => `${token} (${percent(chance, 2)})`);
    const before = [start.first, ...run.tokens].slice(0, at + 1).map((token) => tokens[token]);
    const place = this.places[this.step];
    this.choices.textContent = `Most probable tokens at the ${place}, after ${before.join(" ")}: ${few.join(", ")}.`;
  }
}
