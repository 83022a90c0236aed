// A model that runs in the page: type an example, switch heads off, and see the answer change.

const LIVE_TASKS = {}; // a task's script adds itself: how to read what people type, and what is right
const SLICE = 12; // milliseconds that counting over examples works before it lets the page breathe
const PAUSE = 200; // milliseconds after the last click before counting begins
const MOST_UNDONE = 100;
const REPLACEMENTS = { zero: "zeros", mean: "its mean output", donor: "its output on" };
const Z = 1.959964;
const FEW_HITS = [0, 0.0512933, 0.3553615, 0.8176914]; // the 5 % quantiles of Gamma(k)

const percent = (share, digits = 1) => `${(100 * share).toFixed(digits)}\u00a0%`;
const capital = (text) => text[0].toUpperCase() + text.slice(1);
const listed = (names) => (names.length < 2 ? names.join("") : `${names.slice(0, -1).join(", ")} and ${names.at(-1)}`);

/** Wilson's 95 % interval of k of n; for one to three hits or misses with the bound of stats.py (`Proportion`). */
function wilson(k, n) {
  const [share, z2] = [k / n, Z ** 2 / n];
  const [middle, half] = [share + z2 / 2, Z * Math.sqrt((share * (1 - share)) / n + z2 / 4 / n)];
  const few = n > 50 ? 3 : 2;
  let [low, high] = [(middle - half) / (1 + z2), (middle + half) / (1 + z2)];
  if (k >= 1 && k <= few) low = Math.min(low, FEW_HITS[k] / n);
  if (n - k >= 1 && n - k <= few) high = Math.max(high, 1 - FEW_HITS[n - k] / n);
  return [k === 0 ? 0 : low, k === n ? 1 : high];
}

/** What both kinds of live model share: models, heads that are replaced, undo, links, counting over examples. */
class Live {
  constructor(figure) {
    const [data, ...packed] = figure.querySelectorAll(":scope > script");
    Object.assign(this, { figure, packed, name: figure.id, header: JSON.parse(data.textContent) });
    Object.assign(this, { engines: [], unpacking: [], past: [], lastKind: null, nChosen: 0 });
    this.root = figure.querySelector(".live");
    this.header.tokens = this.header.tokens.map(visibleToken);
    this.models = this.header.models.map((model) => ({
      ...model,
      title: visible(model.title),
      proof: visible(model.proof),
    }));
    const { task, settings } = this.header;
    this.reader = Object.hasOwn(LIVE_TASKS, task) ? LIVE_TASKS[task](settings) : null;
    this.state = { model: 0, replaced: new Set(), by: "zero", donor: null, text: null };
    figure.live = this; // for those who want to use the engine from the console
  }

  async load() {
    try {
      await this.engineOf(0);
      this.build();
      this.onModel();
      await this.restore();
      this.update();
    } catch (error) {
      const words = `This browser could not run the model (${error.message}). Use a browser of 2024 or later.`;
      this.root.replaceChildren(make("p", { class: "note" }, words));
      return;
    }
    addEventListener("hashchange", async () => (await this.restore()) && this.update());
    this.root.dataset.isReady = "";
  }

  get model() {
    return this.models[this.state.model];
  }

  get engine() {
    return this.engines[this.state.model];
  }

  /** Held-out examples of the model's own task: two models may have been held to different ones. */
  get examples() {
    return this.model.examples ?? this.header.examples;
  }

  engineOf(i) {
    this.unpacking[i] ??= Engine.unpacked(this.models[i], this.packed[i].textContent).then((engine) => {
      this.engines[i] = engine;
    });
    return this.unpacking[i];
  }

  /** Of two choices in a hurry, the later one counts. */
  async chooseModel(i) {
    this.nChosen += 1;
    const mine = this.nChosen;
    try {
      await this.engineOf(i);
    } catch (error) {
      return this.complain(`${this.models[i].title} could not be loaded (${error.message}). Reload the page.`);
    }
    if (mine !== this.nChosen) return;
    this.remember();
    Object.assign(this.state, { model: i, replaced: new Set() });
    this.onModel();
    this.update();
  }

  /** After another model was chosen. */
  onModel() {
    this.board.setModel(this.model);
  }

  /** The first example that a report names and this figure can read, else a held-out one. */
  firstText(at) {
    const named = this.model.named.filter((text) => this.read(text).source);
    return named[at] ?? (this.examples[at] ?? this.examples[0])[0];
  }

  // --- controls ------------------------------------------------------------------------------------------------------

  buildControls() {
    const id = (name) => `${this.name}-${name}`;
    const { event, example } = this.header.words;
    const plain = { type: "text", autocomplete: "off", spellcheck: "false" };
    this.donor = make("input", { id: id("other"), class: "donor", ...plain, "aria-label": `the other ${example}` });
    const choices = Object.entries(REPLACEMENTS).map(([by, words]) => {
      const radio = make("input", { type: "radio", name: id("by"), value: by, id: id(by) });
      radio.addEventListener("change", () => this.setBy(by));
      return make("label", { for: id(by) }, radio, " ", words);
    });
    this.donor.addEventListener("change", () => this.setDonor(this.donor.value));
    this.donor.addEventListener("keydown", ({ key }) => key === "Enter" && this.setDonor(this.donor.value));
    this.undoButton = this.buttonOf("Undo", () => this.undo());
    this.allOn = this.buttonOf("All heads on", () => this.setReplaced(new Set()));
    this.harmless = this.buttonOf("", () => this.switchOffHarmless());
    this.link = this.buttonOf("Copy link", () => this.copyLink());
    this.link.hidden = location.protocol === "about:"; // the frame of a notebook has no address
    this.routes = make("select", { id: id("route"), "aria-label": `Route of the ${event}` });
    this.routes.addEventListener("change", () => this.showRoute());
    this.routeLabel = make("label", { for: this.routes.id }, `Route of the ${event} `, this.routes);
    this.routeNote = make("p", { class: "note", hidden: true });
    this.tally = make("p", { class: "tally" });
    this.unit = make("p", { class: "note" }, "Below each head: change of accuracy in points when it is ablated.");
    const legend = make("legend", {}, "A click on a head replaces its output with");
    return make(
      "div",
      { class: "live-controls" },
      make("fieldset", { class: "ways" }, legend, ...choices, this.donor),
      make("div", { class: "live-buttons" }, this.undoButton, this.allOn, this.harmless, this.link, this.routeLabel),
      this.tally,
      this.routeNote,
      this.unit,
    );
  }

  buttonOf(words, act) {
    const button = make("button", { type: "button" }, words);
    button.addEventListener("click", () => button.getAttribute("aria-disabled") !== "true" && act());
    return button;
  }

  /** Models differ in what was measured: routes, heads that are harmless alone. */
  showControls() {
    const { routes, harmless, worth } = this.model;
    this.routeLabel.hidden = !routes.length;
    const chosen = this.routes.value;
    const options = routes.map(({ title }, i) => make("option", { value: i + 1 }, title));
    this.routes.replaceChildren(make("option", { value: 0 }, "not shown"), ...options);
    this.routes.value = routes[chosen - 1] ? chosen : 0;
    this.harmless.hidden = harmless.length < 2;
    this.harmless.textContent = `Switch off all ${harmless.length} heads that are harmless alone`;
    this.unit.hidden = !Object.keys(worth).length;
    setDisabled(this.undoButton, !this.past.length);
    setDisabled(this.allOn, !this.state.replaced.size);
    for (const radio of this.root.querySelectorAll(".ways input[type=radio]"))
      radio.checked = radio.value === this.state.by;
    if (document.activeElement !== this.donor) this.donor.value = this.state.donor ?? "";
    this.showRoute();
  }

  showRoute() {
    const route = this.model.routes[this.routes.value - 1] ?? null;
    this.routeNote.hidden = !route;
    this.board.drawRoute(route);
    if (!route) return;
    const { event, example } = this.header.words;
    const share = `${Math.round(100 * route.heads[0].share)} %`;
    this.routeNote.textContent = [
      `Arrows join the heads that move the ${event}, in the order of layers. “moves ${share}”: if this head's output is`,
      `taken from another ${example}, the logits of the answer move ${share} of the way to the other answer. Each head`,
      "was measured alone.",
    ].join(" ");
  }

  setBy(by) {
    this.remember();
    this.state.by = by;
    this.update();
  }

  setDonor(text) {
    const donor = this.read(text);
    this.complain(donor.error ?? "");
    if (donor.error || (donor.text === this.state.donor && this.state.by === "donor")) return;
    this.remember();
    Object.assign(this.state, { donor: donor.text, by: "donor" });
    this.update();
  }

  toggle(short) {
    const replaced = new Set(this.state.replaced);
    if (!replaced.delete(short)) replaced.add(short);
    this.setReplaced(replaced);
  }

  setReplaced(replaced) {
    this.remember();
    this.state.replaced = replaced;
    this.update();
  }

  switchOffHarmless() {
    this.remember();
    Object.assign(this.state, { by: "zero", replaced: new Set(this.model.harmless) });
    this.update();
  }

  // --- what replaces the output of heads -----------------------------------------------------------------------------

  /** What replaces the heads' outputs on the shown example. */
  get by() {
    return this.state.by;
  }

  get isDonated() {
    return this.state.replaced.size > 0 && this.by === "donor";
  }

  /** For the engine; `donor` is a source whose outputs are put in place. */
  replacements(engine, donor, by = this.by) {
    const heads = by === "donor" && this.state.replaced.size ? this.outputsOn(engine, donor) : null;
    const otherOf = (short) => {
      if (by === "zero") return { rows: null };
      return by === "mean" ? meanOf(engine, short) : { rows: heads[short].z, n: heads[short].rows, wraps: true };
    };
    return new Map([...this.state.replaced].map((short) => [short, otherOf(short)]));
  }

  /** The outputs of all heads on a source; they are kept while the source is, because counting asks for them often. */
  outputsOn(engine, source) {
    engine.outputs ??= new WeakMap();
    if (!engine.outputs.has(source)) {
      const heads = Object.entries(this.run(engine, { source }).heads());
      engine.outputs.set(source, Object.fromEntries(heads.map(([short, { z, rows }]) => [short, { z, rows }])));
    }
    return engine.outputs.get(source);
  }

  /** "without E0H2", "with the mean of E0H2", "with E0H2 from 342+125". */
  changeTo(donor, by = this.by) {
    const names = [...this.state.replaced];
    const heads = names.length > 4 ? `${names.length} heads` : listed(names);
    return { zero: `without ${heads}`, mean: `with the mean of ${heads}`, donor: `with ${heads} from ${donor}` }[by];
  }

  get change() {
    return this.changeTo(cut(this.state.donor, 30));
  }

  /** What a tile says of a replaced head. */
  get replacedNow() {
    const words = { zero: "off", mean: "mean", donor: `from ${cut(this.state.donor, 12)}` }[this.by];
    return new Map([...this.state.replaced].map((short) => [short, words]));
  }

  // --- counting over examples ----------------------------------------------------------------------------------------

  /** How many held-out examples are right now: counted in small slices, begun again after every change. */
  count() {
    const { model, replaced, by: chosen } = this.state;
    const asked = [model, chosen, ...[...replaced].sort()].join();
    if (asked === this.counted) return; // another typed example changes nothing
    this.counted = asked;
    clearTimeout(this.counting);
    const [{ examples, engine }, { words }, by] = [this, this.header, this.state.by];
    const share = percent(this.model.nRight / examples.length);
    const all = `With all heads on, the model is right on ${share} of ${examples.length} held-out ${words.examples}.`;
    this.tally.textContent = all;
    if (!this.state.replaced.size) return;
    const fixed = by === "donor" ? null : this.replacements(engine, null, by);
    let [i, right] = [0, 0];
    const work = () => {
      const end = performance.now() + SLICE;
      for (; i < examples.length && performance.now() < end; i += 1) {
        const replaced = fixed ?? this.replacements(engine, examples[(i + 1) % examples.length][1], by);
        const run = this.run(engine, { source: examples[i][1] }, { replaced, isTraced: false });
        right += this.isRight(run, examples[i][2]);
      }
      const [low, high] = wilson(right, i);
      const range = `${percent(right / i)} [${(100 * low).toFixed(1)}, ${(100 * high).toFixed(1)}]`;
      const counted = `${capital(this.changeTo(`another ${words.example}`, by))}: ${range} of ${i}`;
      const isDone = i === examples.length;
      const shown = isDone ? make("strong", {}, `${counted} (95 % CI).`) : `${counted}, still counting …`;
      this.tally.replaceChildren(`${all} `, shown);
      if (!isDone) this.counting = setTimeout(work);
      else {
        this.tally.dataset.isDone = "";
        announce(counted);
      }
    };
    delete this.tally.dataset.isDone;
    this.counting = setTimeout(work, PAUSE);
  }

  // --- undo, links, messages -----------------------------------------------------------------------------------------

  copyOfState() {
    return { ...this.state, replaced: new Set(this.state.replaced) };
  }

  /** Several steps of one kind in a row, such as those of a slider, are undone together. */
  remember(kind = null) {
    if (kind && kind === this.lastKind) return;
    [this.lastKind, this.isChanged] = [kind, true];
    this.past.push(this.copyOfState());
    this.past.splice(0, this.past.length - MOST_UNDONE);
  }

  async undo() {
    const before = this.past.pop();
    this.lastKind = null;
    if (before) await this.take(before);
  }

  /** Shows another state, perhaps of another model. */
  async take(state) {
    await this.engineOf(state.model);
    const isOther = state.model !== this.state.model;
    this.state = state;
    if (isOther) this.onModel();
    this.update();
  }

  /** The state as the part of an address behind #. */
  get address() {
    const { model, text, donor, replaced, by } = this.state;
    const parts = { model, on: text, by, donor, heads: [...replaced].join(",") };
    const given = Object.entries(parts).filter(([, value]) => value !== null && value !== "");
    return `#${this.name}?${given.map(([key, value]) => `${key}=${encodeURIComponent(value)}`).join("&")}`;
  }

  /** Takes the state from the page's address, if that names this figure; what does not fit is left out. */
  async restore() {
    const [name, query] = location.hash.slice(1).split("?");
    if (name !== this.name || query === undefined || query === this.address.split("?")[1]) return false;
    const given = new URLSearchParams(query.replaceAll("+", "%2B"));
    const state = this.copyOfState();
    if (Object.hasOwn(this.models, given.get("model") ?? "")) state.model = Number(given.get("model"));
    if (Object.hasOwn(REPLACEMENTS, given.get("by") ?? "")) state.by = given.get("by");
    const known = new Set(this.models[state.model].architecture.sites.flatMap((site) => site.heads));
    state.replaced = new Set((given.get("heads") ?? "").split(",").filter((short) => known.has(short)));
    for (const [key, field] of Object.entries({ on: "text", donor: "donor" })) {
      const example = given.has(key) ? this.read(given.get(key)) : {};
      if (example.source) state[field] = example.text;
    }
    if (this.example) this.remember();
    await this.engineOf(state.model);
    const isOther = state.model !== this.state.model;
    this.state = state;
    if (isOther) this.onModel();
    this.figure.scrollIntoView({ behavior: "instant" });
    return true;
  }

  /** Only after a reader has changed something: a page must not change its address by itself. */
  showAddress() {
    if (!this.isChanged) return;
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
    announce(isCopied ? "Link copied" : "Copy the address of this page: it is the link");
    this.link.textContent = isCopied ? "Link copied" : "Copy the page's address";
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

/** The mean output of a head at each position [position x head width]; its block holds all heads side by side. */
function meanOf(engine, short) {
  const site = engine.sites.find(({ heads }) => heads.includes(short));
  const { shape, data } = engine.part(`mean.${site.name}`);
  const [n, nHeads, width] = shape;
  const head = site.heads.indexOf(short);
  const rows = new Float32Array(n * width);
  for (let at = 0; at < n; at += 1) {
    rows.set(data.subarray((at * nHeads + head) * width, (at * nHeads + head + 1) * width), at * width);
  }
  return { rows, n, wraps: false };
}
