// A model that runs in the page: type an example, switch heads off, and see the answer change.

const LIVE_TASKS = {}; // a task's script adds itself: how to read what people type, and what is right
const SLICE = 12; // milliseconds that counting over examples works before it lets the page breathe
const PAUSE = 200; // milliseconds after the last click before counting begins
const WAYS = { zero: "zeros", mean: "its mean output", donor: "its output on" };
const Z = 1.959964;

const percent = (share, digits = 1) => `${(100 * share).toFixed(digits)}\u00a0%`;

/** Wilson's 95 % interval of k of n. */
function wilson(k, n) {
  const [share, z2] = [k / n, Z ** 2 / n];
  const [middle, half] = [share + z2 / 2, Z * Math.sqrt((share * (1 - share)) / n + z2 / 4 / n)];
  return [Math.max(0, (middle - half) / (1 + z2)), Math.min(1, (middle + half) / (1 + z2))];
}

const listed = (names) => (names.length < 2 ? names.join("") : `${names.slice(0, -1).join(", ")} and ${names.at(-1)}`);

/** What both kinds of live model share: models, heads that are replaced, undo, links, counting over examples. */
class Live {
  constructor(figure) {
    const [data, ...packed] = figure.querySelectorAll(":scope > script");
    Object.assign(this, { figure, packed, name: figure.id, header: JSON.parse(data.textContent), engines: [] });
    this.root = figure.querySelector(".live");
    this.models = this.header.models;
    this.reader = LIVE_TASKS[this.header.task]?.(this.header.settings) ?? null;
    this.state = { model: 0, replaced: new Map(), way: "zero", donor: null, text: null };
    this.past = [];
    figure.live = this; // for those who want to use the engine from the console
  }

  async load() {
    try {
      await this.engineOf(0);
    } catch (error) {
      const words = `The model could not be unpacked (${error.message}). A browser of 2024 or later can.`;
      this.root.replaceChildren(make("p", { class: "note" }, words));
      return;
    }
    this.build();
    this.board.setModel(this.model);
    this.restore();
    this.update();
    addEventListener("hashchange", () => this.restore() && this.update());
    this.root.dataset.isReady = "";
  }

  get model() {
    return this.models[this.state.model];
  }

  get engine() {
    return this.engines[this.state.model];
  }

  async engineOf(i) {
    this.engines[i] ??= await Engine.unpacked(this.models[i], this.packed[i].textContent);
    return this.engines[i];
  }

  async chooseModel(i) {
    await this.engineOf(i);
    this.remember();
    Object.assign(this.state, { model: i, replaced: new Map() });
    this.board.setModel(this.model);
    this.update();
  }

  // --- controls ------------------------------------------------------------------------------------------------------

  buildControls() {
    const id = (name) => `${this.name}-${name}`;
    this.donor = make("input", {
      id: id("other"),
      type: "text",
      class: "donor",
      autocomplete: "off",
      spellcheck: "false",
      "aria-label": `the other ${this.header.words.example}`,
    });
    this.ways = Object.entries(WAYS).map(([way, words]) => {
      const radio = make("input", { type: "radio", name: id("way"), value: way, id: id(way) });
      radio.addEventListener("change", () => this.setWay(way));
      return make("label", { for: id(way) }, radio, " ", words);
    });
    this.donor.addEventListener("change", () => this.setDonor(this.donor.value));
    this.donor.addEventListener("keydown", ({ key }) => key === "Enter" && this.setDonor(this.donor.value));
    this.undoButton = this.buttonOf("Undo", () => this.undo());
    this.allOn = this.buttonOf("All heads on", () => this.setReplaced(new Map()));
    this.harmless = this.buttonOf("", () => this.switchOffHarmless());
    this.link = this.buttonOf("Copy link", () => this.copyLink());
    this.routes = make("select", { id: id("route"), "aria-label": `Route of the ${this.header.words.event}` });
    this.routes.addEventListener("change", () => this.showRoute());
    this.routeLabel = make("label", { for: this.routes.id }, `Route of the ${this.header.words.event} `, this.routes);
    this.routeNote = make("p", { class: "note", hidden: true });
    this.tally = make("p", { class: "tally" });
    const legend = make("legend", {}, "A click on a head replaces its output by");
    return make(
      "div",
      { class: "live-controls" },
      make("fieldset", { class: "ways" }, legend, ...this.ways, this.donor),
      make("div", { class: "live-buttons" }, this.undoButton, this.allOn, this.harmless, this.link, this.routeLabel),
      this.tally,
      this.routeNote,
    );
  }

  buttonOf(words, act) {
    const button = make("button", { type: "button" }, words);
    button.addEventListener("click", () => button.getAttribute("aria-disabled") !== "true" && act());
    return button;
  }

  /** Models differ in what was measured: routes, heads that are harmless alone. */
  showControls() {
    const { routes = [], harmless = [] } = this.model;
    this.routeLabel.hidden = !routes.length;
    const chosen = this.routes.value;
    const options = routes.map(({ title }, i) => make("option", { value: i + 1 }, title));
    this.routes.replaceChildren(make("option", { value: 0 }, "not shown"), ...options);
    this.routes.value = routes[chosen - 1] ? chosen : 0;
    this.harmless.hidden = harmless.length < 2;
    this.harmless.textContent = `Switch off all ${harmless.length} heads that are harmless alone`;
    setDisabled(this.undoButton, !this.past.length);
    setDisabled(this.allOn, !this.state.replaced.size);
    for (const radio of this.root.querySelectorAll(".ways input[type=radio]"))
      radio.checked = radio.value === this.state.way;
    if (document.activeElement !== this.donor) this.donor.value = this.state.donor ?? "";
  }

  showRoute() {
    const route = this.model.routes[this.routes.value - 1] ?? null;
    this.routeNote.hidden = !route;
    const { event, example } = this.header.words;
    this.routeNote.textContent = [
      `Arrows join the heads that move the ${event}, in the order of layers. “moves 91 %”: this head's output,`,
      `taken from another ${example}, moves the answer 91 % of the way to the other answer. Each head was measured alone.`,
    ].join(" ");
    this.board.drawRoute(route);
  }

  setWay(way) {
    this.remember();
    this.state.way = way;
    this.state.replaced = new Map([...this.state.replaced.keys()].map((short) => [short, way]));
    this.update();
  }

  setDonor(text) {
    const donor = this.read(text);
    this.complain(donor.error ?? "");
    if (donor.error || (donor.text === this.state.donor && this.state.way === "donor")) return;
    this.remember();
    Object.assign(this.state, { donor: donor.text, way: "donor" });
    this.state.replaced = new Map([...this.state.replaced.keys()].map((short) => [short, "donor"]));
    this.update();
  }

  toggle(short) {
    const replaced = new Map(this.state.replaced);
    if (!replaced.delete(short)) replaced.set(short, this.state.way);
    this.setReplaced(replaced);
  }

  setReplaced(replaced) {
    this.remember();
    this.state.replaced = replaced;
    this.update();
  }

  switchOffHarmless() {
    this.state.way = "zero";
    this.setReplaced(new Map(this.model.harmless.map((short) => [short, "zero"])));
  }

  // --- what replaces the output of heads -----------------------------------------------------------------------------

  /** For the engine; `donor` is a source whose outputs are put in place. */
  replacements(engine, donor) {
    const others = new Map();
    const heads = this.isDonated ? this.outputsOn(engine, donor) : null;
    for (const [short, way] of this.state.replaced) {
      if (way === "zero") others.set(short, { rows: null });
      else if (way === "mean") others.set(short, meanOf(engine, short));
      else others.set(short, { rows: heads[short].z, n: heads[short].rows, wraps: true });
    }
    return others;
  }

  get isDonated() {
    return [...this.state.replaced.values()].includes("donor");
  }

  /** The outputs of all heads on a source; they are kept while the source is, because counting asks for them often. */
  outputsOn(engine, source) {
    engine.outputs ??= new WeakMap();
    const known = engine.outputs.get(source);
    if (known) return known;
    const heads = this.run(engine, { source }).heads();
    engine.outputs.set(
      source,
      Object.fromEntries(Object.entries(heads).map(([short, { z, rows }]) => [short, { z, rows }])),
    );
    return heads;
  }

  /** "without E0H2", "with the mean of E0H2", "with E0H2 from 342+125". */
  get change() {
    const names = [...this.state.replaced.keys()];
    const heads = names.length > 4 ? `${names.length} heads` : listed(names);
    const words = {
      zero: `without ${heads}`,
      mean: `with the mean of ${heads}`,
      donor: `with ${heads} from ${this.state.donor}`,
    };
    return words[[...this.state.replaced.values()][0]];
  }

  // --- counting over examples ----------------------------------------------------------------------------------------

  /** How many held-out examples are right now: counted in small slices, begun again after every change. */
  count() {
    clearTimeout(this.counting);
    const { examples, words } = this.header;
    const share = percent(this.model.nRight / examples.length);
    const all = `All heads on: ${share} of ${examples.length} held-out ${words.examples} are right.`;
    this.tally.textContent = all;
    if (!this.state.replaced.size) return;
    const { engine, isDonated } = this;
    const fixed = isDonated ? null : this.replacements(engine, null);
    let [i, right] = [0, 0];
    const work = () => {
      const end = performance.now() + SLICE;
      for (; i < examples.length && performance.now() < end; i += 1) {
        const donor = examples[(i + 1) % examples.length][1];
        const replaced = fixed ?? this.replacements(engine, donor);
        right += this.isRight(
          this.run(engine, { source: examples[i][1] }, { replaced, isTraced: false }),
          examples[i][2],
        );
      }
      const [low, high] = wilson(right, i);
      const by = isDonated ? ` (each gets the outputs on another one)` : "";
      const range = `${percent(right / i)} [${(100 * low).toFixed(1)}, ${(100 * high).toFixed(1)}]`;
      this.tally.replaceChildren(`${all} `, make("strong", {}, `${capital(this.change)}: ${range} of ${i}${by}.`));
      if (i < examples.length) this.counting = setTimeout(work);
      else this.tally.dataset.isDone = "";
    };
    delete this.tally.dataset.isDone;
    this.counting = setTimeout(work, PAUSE);
  }

  // --- undo, links, messages -----------------------------------------------------------------------------------------

  copyOfState() {
    return { ...this.state, replaced: new Map(this.state.replaced) };
  }

  remember() {
    this.past.push(this.copyOfState());
    this.past.splice(0, this.past.length - 100);
  }

  async undo() {
    const before = this.past.pop();
    if (!before) return;
    const isOther = before.model !== this.state.model;
    this.state = before;
    await this.engineOf(before.model);
    if (isOther) this.board.setModel(this.model);
    this.update();
  }

  /** The state as the part of an address behind #. */
  get address() {
    const { model, text, donor, replaced } = this.state;
    const parts = {
      model,
      on: text,
      donor,
      heads: [...replaced].map(([short, way]) => `${short}:${way}`).join(","),
    };
    const given = Object.entries(parts).filter(([, value]) => value);
    return `#${this.name}?${given.map(([key, value]) => `${key}=${encodeURIComponent(value)}`).join("&")}`;
  }

  /** Takes the state from the page's address, if that names this figure; what does not fit is left out. */
  restore() {
    const [name, query] = location.hash.slice(1).split("?");
    if (name !== this.name || query === undefined || query === this.address.split("?")[1]) return false;
    const given = new URLSearchParams(query.replaceAll("+", "%2B"));
    const heads = (given.get("heads") ?? "").split(",").map((each) => each.split(":"));
    const known = new Set(this.model.architecture.sites.flatMap((site) => site.heads));
    this.state.replaced = new Map(heads.filter(([short, way]) => known.has(short) && WAYS[way]));
    for (const [key, name] of [
      ["on", "text"],
      ["donor", "donor"],
    ]) {
      const example = given.has(key) && this.read(given.get(key));
      if (example?.source) this.state[name] = example.text;
    }
    this.figure.scrollIntoView({ behavior: "instant" });
    return true;
  }

  /** Only after a reader has changed something: a page must not change its address by itself. */
  showAddress() {
    if (!this.past.length) return;
    try {
      history.replaceState(null, "", this.address);
    } catch {
      // A frame of a notebook has no address of its own.
    }
  }

  async copyLink() {
    const text = make("span", {}, location.href.split("#")[0] + this.address);
    this.root.append(text);
    const isCopied = await copy(text);
    text.remove();
    announce(isCopied ? "Link copied" : "The address of this page is the link");
    this.link.textContent = isCopied ? "Link copied" : "See the address";
    setTimeout(() => (this.link.textContent = "Copy link"), 2000);
  }

  /** An example that was typed, or one of the held-out ones where the task has no script. */
  read(text) {
    if (this.reader) return this.reader.parse(text);
    const known = this.header.examples.find(([shown]) => shown === text.trim());
    return known
      ? { text: known[0], source: known[1], right: known[2] }
      : { error: "Choose one of the listed examples." };
  }

  complain(words) {
    this.error.textContent = words;
    this.error.hidden = !words;
  }
}

const capital = (text) => text[0].toUpperCase() + text.slice(1);

/** The mean output of a head at each position [position x head width]; its block holds all heads side by side. */
function meanOf(engine, short) {
  const site = engine.sites.find(({ heads }) => heads.includes(short));
  const { shape, data } = engine.part(`mean.${site.name}`);
  const [n, nHeads, width] = shape;
  const head = site.heads.indexOf(short);
  const rows = new Float32Array(n * width);
  for (let at = 0; at < n; at += 1)
    rows.set(data.subarray((at * nHeads + head) * width, (at * nHeads + head + 1) * width), at * width);
  return { rows, n, wraps: false };
}

// --- a model that writes an answer -----------------------------------------------------------------------------------

class LiveSequence extends Live {
  build() {
    const { examples, words, answerPlaces } = this.header;
    const { named } = this.model;
    this.state.text = named[0] ?? examples[0][0];
    this.state.donor = named[1] ?? examples[1][0];
    this.step = null;
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
    this.choices = make("p", { class: "choices" });
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
    const select = make(
      "select",
      { id: `${this.name}-model` },
      ...this.models.map(({ title }, i) => make("option", { value: i }, title)),
    );
    select.addEventListener("change", () => this.chooseModel(Number(select.value)));
    return [make("p", {}, make("label", { for: select.id }, "Model "), select)];
  }

  type(text) {
    const example = this.read(text);
    if (example.error) return this.complain(text.trim() ? example.error : "");
    this.complain("");
    if (example.text === this.state.text) return;
    this.remember();
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
    this.showChips();
    this.showControls();
    this.showAnswers();
    this.paintHeads();
    this.showAddress();
    this.count();
  }

  paintHeads() {
    const shown = new Map(
      [...this.state.replaced].map(([short, way]) => [
        short,
        { zero: "off", mean: "mean", donor: `from ${this.state.donor}` }[way],
      ]),
    );
    this.board.show(
      this.now.heads(),
      this.whole.heads(),
      shown,
      this.step === null ? null : this.step - this.header.start.given.length,
    );
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
      make("tbody", {}, ...rows.map(([words, run]) => this.answerRow(words, run, right))),
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

  answerRow(words, run, right) {
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
      const button = make(
        "button",
        { type: "button", class: `digit ${classes}`, "aria-pressed": String(this.step === i) },
        this.header.tokens[token],
      );
      if (chance !== null) button.append(make("small", {}, percent(chance, chance > 0.995 ? 0 : 1)));
      button.addEventListener("click", () => this.stepTo(this.step === i ? null : i));
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
  stepTo(step) {
    this.step = step;
    this.showAnswers();
    this.paintHeads();
    this.table.querySelectorAll("tr:last-child .digit")[step ?? 0]?.focus();
  }

  showChoices() {
    const { tokens, start, words } = this.header;
    const at = this.step === null ? -1 : this.step - start.given.length;
    if (at < 0) {
      const why = "to see what else the model considered, and which row of each map wrote it";
      this.choices.textContent = `Choose a ${words.place} of the answer ${why}.`;
      return;
    }
    const chances = softmax(this.now.logits[at])
      .map((chance, token) => [chance, tokens[token]])
      .sort(([a], [b]) => b - a);
    const few = chances.slice(0, 3).map(([chance, token]) => `${token} (${percent(chance, 2)})`);
    this.choices.textContent = `Writing the ${this.places[this.step]}, after ${[start.first, ...this.now.tokens]
      .slice(0, at + 1)
      .map((token) => tokens[token])
      .join(" ")}: ${few.join(", ")}.`;
  }
}
