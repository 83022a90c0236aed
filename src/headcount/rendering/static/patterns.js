// Every head of a model, on any of the examples that the page holds: pick an example, then a head to see it large.

const ROOM_BESIDE = 720; // pixels a figure needs for its heads and a large view side by side
const LEAST_THUMB = 58; // pixels, with the gap
const FEW_TOKENS = 24;
const MANY_PAGES = 8; // more are searched for, not looked through

const ALL_WEIGHTS = { rows: 1, columns: WHOLE + 1, bytes: Uint8Array.from({ length: WHOLE + 1 }, (_, i) => i) };

class Patterns {
  constructor(figure) {
    const [data, packed] = figure.querySelectorAll(":scope > script");
    this.packed = packed;
    this.root = figure.querySelector(".patterns");
    this.name = figure.id;
    this.header = readable(JSON.parse(data.textContent));
    this.plan = layOut(this.header);
    this.mostHeads = Math.max(...this.header.sites.map(({ heads }) => heads.length));
    [this.page, this.site, this.head] = [0, 0, 0];
    this.cursor = null;
    this.onScreen = new Set();
    this.power = powerFor(this.header);
    this.palette = paletteNow(this.power);
    this.build();
    this.listen();
  }

  /** Weights come after the page is there: they are most of it. */
  async load() {
    try {
      this.bytes = await unpack(this.packed.textContent);
    } catch (error) {
      const words = `This browser could not load the patterns (${error.message}). Use a browser of 2024 or later.`;
      this.root.replaceChildren(make("p", { class: "note" }, words));
      return;
    }
    this.turnTo(this.page);
  }

  // --- what there is -------------------------------------------------------------------------------------------------

  build() {
    this.picker = new PagePicker(this.name, this.header.pages, (page) => this.turnTo(page));
    this.pageTitle = make("p", { class: "page-title", "aria-live": "polite" });
    this.thumbs = [];
    this.sites = this.header.sites.map((site, i) => this.siteOf(site, i));
    const words = "All heads: arrow keys move between heads, Enter shows a head enlarged";
    this.heads = make("div", { class: "heads", role: "group", "aria-label": words }, ...this.sites);
    this.large = new LargeView((row, column) => this.pointAt(this.site, row, column), () => this.toggleEnlarged());
    this.board = make("div", { class: "board" }, this.heads, this.large.element);
    this.scale = make("canvas", { "aria-hidden": "true" });
    const shade = this.power < 1 ? "attention weight (square-root scale)" : "attention weight";
    const scale = make("p", { class: "scale" }, shade, make("span", {}, "0"), this.scale, make("span", {}, "1"));
    this.root.append(this.picker.element, make("div", { class: "page-head" }, this.pageTitle, scale), this.board);
    this.thumbs[0].button.tabIndex = 0;
  }

  siteOf(site, index) {
    const heading = make("h3", { id: `${this.name}-site-${index}` }, siteTitle(site));
    const thumbs = site.heads.map((short, head) => this.thumbOf(short, index, head));
    this.thumbs.push(...thumbs);
    const row = make("div", { class: "thumbs" }, ...thumbs.map(({ button }) => button));
    return make("div", { class: "site", role: "group", "aria-labelledby": heading.id }, heading, row);
  }

  thumbOf(short, site, head) {
    const canvas = make("canvas", { "aria-hidden": "true" });
    const button = make("button", { type: "button", class: "thumb", tabindex: "-1", "aria-pressed": "false" });
    const worth = this.header.worth?.[short];
    button.append(make("span", { class: "pixels" }, canvas), make("span", { class: "short" }, short));
    if (worth) button.append(" ", make("span", { class: "worth" }, worth));
    return { button, canvas, site, head };
  }

  // --- what is shown -------------------------------------------------------------------------------------------------

  turnTo(page) {
    this.page = page;
    const { title, note } = this.header.pages[page];
    this.pageTitle.replaceChildren(make("strong", {}, title), note ? ` ${note}` : "");
    if (!this.bytes) return;
    if (this.cursor && !this.fits(this.cursor)) this.cursor = null;
    for (const { canvas, site } of this.thumbs) canvas.style.aspectRatio = proportions(this.plan[page][site]);
    this.choose(this.site, this.head);
    this.repaint();
  }

  choose(site, head) {
    [this.site, this.head] = [site, head];
    for (const thumb of this.thumbs) {
      thumb.button.setAttribute("aria-pressed", thumb.site === site && thumb.head === head);
    }
    this.place();
    this.large.show(this.viewOf(site, head), this.palette);
    this.drawCursor();
  }

  /** Beside the heads if there is room, else below the row of the chosen one. */
  place() {
    const isBeside = this.root.clientWidth >= ROOM_BESIDE && !this.isEnlarged;
    this.board.classList.toggle("beside", isBeside);
    const home = isBeside ? this.board : this.sites[this.site];
    if (this.large.element.parentElement !== home) home.append(this.large.element);
    this.large.enlarge.hidden = this.root.clientWidth < ROOM_BESIDE;
    this.heads.style.setProperty("--columns", columnsFor(this.mostHeads, this.heads.clientWidth));
  }

  viewOf(site, head) {
    const { tokens, axes } = this.header.pages[this.page];
    const [queries, keys] = axes[site].map((axis) => tokens[axis]);
    const short = this.header.sites[site].heads[head];
    const about = [siteTitle(this.header.sites[site]), this.header.worth?.[short]].filter(Boolean).join(", ");
    const [queryNames, keyNames] = [this.named(queries, site, 0), this.named(keys, site, 1)];
    const matrix = matrixOf(this.bytes, this.plan[this.page][site], head);
    return { title: short, about, queries, keys, queryNames, keyNames, matrix };
  }

  /** Tokens in quotes and, where that is known, what each stands for: "‘7’ (a 10s)". */
  named(tokens, site, side) {
    const places = this.header.places?.[this.header.pages[0].axes[site][side]];
    const isKnown = this.page > 0 && places?.length === tokens.length;
    const place = (token, i) => (isKnown && places[i] !== token ? ` (${places[i]})` : "");
    return tokens.map((token, i) => `‘${cut(token, 40)}’${place(token, i)}`);
  }

  repaint() {
    for (const thumb of this.thumbs) thumb.isStale = true;
    for (const thumb of this.onScreen) this.paintThumb(thumb);
    paint(this.scale, ALL_WEIGHTS, this.palette);
  }

  paintThumb(thumb) {
    if (!this.bytes || !thumb.isStale) return;
    paint(thumb.canvas, matrixOf(this.bytes, this.plan[this.page][thumb.site], thumb.head), this.palette);
    thumb.isStale = false;
  }

  // --- the cursor: one query and one key, marked wherever there are such ---------------------------------------------

  pointAt(site, row, column) {
    const [queries, keys] = this.header.pages[this.page].axes[site];
    this.cursor = row === null ? null : { queries, keys, row, column };
    this.drawCursor();
  }

  fits({ queries, keys, row, column }) {
    const { tokens } = this.header.pages[this.page];
    return row < (tokens[queries]?.length ?? 0) && column < (tokens[keys]?.length ?? 0);
  }

  /** [row, column] of a site, null on an axis that is not the cursor's. */
  cursorIn(site) {
    const [queries, keys] = this.header.pages[this.page].axes[site];
    const row = this.cursor?.queries === queries ? this.cursor.row : null;
    return [row, this.cursor?.keys === keys ? this.cursor.column : null];
  }

  drawCursor() {
    this.large.point(...this.cursorIn(this.site));
    this.sites.forEach((element, site) => {
      const [row, column] = this.cursorIn(site);
      const { rows, columns } = this.plan[this.page][site];
      markShare(element, "row", row, rows);
      markShare(element, "column", column, columns);
    });
  }

  // --- what readers do -----------------------------------------------------------------------------------------------

  listen() {
    const see = (entries) => entries.forEach((entry) => this.onSeen(entry));
    const seen = new IntersectionObserver(see, { rootMargin: "200px" });
    this.byButton = new Map(this.thumbs.map((thumb) => [thumb.button, thumb]));
    for (const { button } of this.thumbs) seen.observe(button);
    this.heads.addEventListener("click", (event) => this.onThumb(event, (thumb) => this.pick(thumb)));
    this.heads.addEventListener("pointermove", (event) => this.onThumb(event, (thumb) => this.hover(event, thumb)));
    this.heads.addEventListener("pointerout", hideTip);
    this.heads.addEventListener("keydown", (event) => this.onThumb(event, (thumb) => this.onKey(event, thumb)));
    new ResizeObserver(() => this.onResize()).observe(this.root);
    onThemeChange(() => this.recolour(paletteNow(this.power)));
    addEventListener("beforeprint", () => this.onPrint());
    addEventListener("afterprint", () => this.recolour(paletteNow(this.power)));
  }

  onSeen({ target, isIntersecting }) {
    const thumb = this.byButton.get(target);
    if (isIntersecting) {
      this.onScreen.add(thumb);
      this.paintThumb(thumb);
    } else this.onScreen.delete(thumb);
  }

  onThumb(event, act) {
    const thumb = this.byButton.get(event.target.closest(".thumb"));
    if (thumb && this.bytes) act(thumb);
  }

  /** What is above may grow or shrink: the head that was picked stays under the pointer. */
  pick(thumb) {
    const before = thumb.button.getBoundingClientRect().top;
    this.moveFocus(thumb);
    this.choose(thumb.site, thumb.head);
    scrollBy({ top: thumb.button.getBoundingClientRect().top - before, behavior: "instant" });
  }

  hover(event, thumb) {
    if (event.pointerType === "touch" || !event.target.closest(".pixels")) return;
    const view = this.viewOf(thumb.site, thumb.head);
    const [row, column] = cellAt(event, thumb.canvas, view.matrix);
    this.pointAt(thumb.site, row, column);
    showTip(`${view.title}: ${sentenceOf(view, row, column)}`, event.clientX, event.clientY);
  }

  onKey(event, thumb) {
    const next = this.neighbour(event.key, thumb);
    if (!next) return;
    event.preventDefault();
    this.moveFocus(next);
  }

  neighbour(key, thumb) {
    const at = this.thumbs.indexOf(thumb);
    const nearest = (site) => this.thumbs.findLast((each) => each.site === site && each.head <= thumb.head);
    const found = {
      ArrowLeft: this.thumbs[at - 1],
      ArrowRight: this.thumbs[at + 1],
      ArrowUp: nearest(thumb.site - 1),
      ArrowDown: nearest(thumb.site + 1),
      Home: this.thumbs[0],
      End: this.thumbs.at(-1),
    };
    return found[key];
  }

  /** Of all heads one is reached by Tab, the others by arrow keys: there may be hundreds. */
  moveFocus(thumb) {
    for (const { button } of this.thumbs) button.tabIndex = -1;
    thumb.button.tabIndex = 0;
    thumb.button.focus();
  }

  toggleEnlarged() {
    this.isEnlarged = !this.isEnlarged;
    this.large.isEnlarged = this.isEnlarged;
    this.large.enlarge.setAttribute("aria-pressed", this.isEnlarged);
    this.large.enlarge.textContent = this.isEnlarged ? "Beside the heads" : "Enlarge";
    this.place();
    this.large.resize();
    this.large.enlarge.focus(); // it moved
    this.large.element.scrollIntoView({ block: "nearest", behavior: "instant" });
  }

  onResize() {
    if (!this.bytes) return;
    this.place();
    this.large.resize();
  }

  recolour(palette) {
    this.palette = palette;
    if (!this.bytes) return;
    this.repaint();
    this.large.show(this.viewOf(this.site, this.head), palette);
  }

  /** Paper is white, and all of it is seen. */
  onPrint() {
    this.recolour(paletteNow(this.power, true));
    for (const thumb of this.thumbs) this.paintThumb(thumb);
  }
}

// --- choosing a page -------------------------------------------------------------------------------------------------

class PagePicker {
  constructor(name, pages, turned) {
    [this.pages, this.turned, this.page] = [pages, turned, 0];
    this.select = make("select", { id: `${name}-page` });
    this.previous = make("button", { type: "button", "aria-label": "Previous example" }, "←");
    this.next = make("button", { type: "button", "aria-label": "Next example" }, "→");
    this.find = make("input", { type: "search", id: `${name}-find`, autocomplete: "off", spellcheck: "false" });
    this.count = make("span", { class: "count", role: "status" });
    this.element = make("div", { class: "choose", role: "group", "aria-label": "Examples" });
    const label = make("label", { class: "which", for: this.select.id }, "Example");
    this.element.append(label, this.previous, this.select, this.next, this.count);
    const finding = make("label", { class: "finding", for: this.find.id }, "Find");
    if (pages.length > MANY_PAGES) this.element.append(finding, this.find);
    this.element.hidden = pages.length < 2;
    this.listen();
    this.filter("");
  }

  listen() {
    this.select.addEventListener("change", () => this.turnTo(Number(this.select.value)));
    this.previous.addEventListener("click", () => this.step(-1));
    this.next.addEventListener("click", () => this.step(1));
    this.find.addEventListener("input", () => this.filter(this.find.value));
  }

  /** Leaves those whose title or note has every word; the first of them is shown unless the one shown is among them. */
  filter(text) {
    const words = text.toLowerCase().split(/\s+/);
    const has = ({ title, note }) => words.every((word) => `${title} ${note}`.toLowerCase().includes(word));
    const found = this.pages.flatMap((page, i) => (has(page) ? [i] : []));
    this.select.replaceChildren(...found.map((i) => make("option", { value: i }, cut(this.pages[i].title, 80))));
    this.select.disabled = !found.length;
    if (found.includes(this.page)) this.select.value = this.page;
    else if (found.length) this.turnTo(found[0]);
    this.say(text.trim() ? `${found.length} of ${this.pages.length} found` : null);
  }

  step(by) {
    const option = this.select.options[this.select.selectedIndex + by];
    if (option) this.turnTo(Number(option.value));
  }

  turnTo(page) {
    this.page = page;
    this.select.value = page;
    this.turned(page);
    this.say(null);
  }

  say(found) {
    const { selectedIndex, length } = this.select;
    this.count.textContent = found ?? `${selectedIndex + 1} of ${length}`;
    setDisabled(this.previous, selectedIndex <= 0);
    setDisabled(this.next, selectedIndex >= length - 1);
  }
}

/** A button that is disabled under the reader's finger must not lose the focus, so it only says that it is. */
function setDisabled(button, isDisabled) {
  button.setAttribute("aria-disabled", isDisabled);
}

// --- words and shapes ------------------------------------------------------------------------------------------------

function readable(header) {
  const pages = header.pages.map((page) => ({
    ...page,
    title: visible(page.title),
    note: visible(page.note),
    tokens: page.tokens.map((axis) => axis.map(visibleToken)),
  }));
  return { ...header, pages, places: header.places?.map((axis) => axis.map(visibleToken)) };
}

/** "Encoder self-attention, layer 0". */
function siteTitle({ stack, kind, layer }) {
  const words = `${stack === "layer" ? "" : `${stack} `}${kind}-attention, layer ${layer}`;
  return words[0].toUpperCase() + words.slice(1);
}

/** As many heads in a row as there is room for, but rows of one length: twelve are six and six, not seven and five. */
function columnsFor(nHeads, room) {
  const most = Math.max(1, Math.floor(room / LEAST_THUMB));
  return Math.ceil(nHeads / Math.ceil(nHeads / most));
}

/** As its cells are squares, but no thumbnail is a mere strip. */
const proportions = ({ rows, columns }) => String(Math.max(0.6, Math.min(columns / rows, 1.75)));

function markShare(element, axis, i, n) {
  element.classList.toggle(`has-${axis}`, i !== null);
  if (i !== null) element.style.setProperty(`--${axis}`, `${(100 * (i + 0.5)) / n}%`);
}

/** Among many keys weights are small: their square roots are shaded, or most heads would look empty. */
function powerFor({ pages }) {
  const areMany = pages.some(({ tokens }) => tokens.some((axis) => axis.length > FEW_TOKENS));
  return areMany ? 0.5 : 1;
}

function paletteNow(power, isPrint = false) {
  const name = isDark() && !isPrint ? "--heat-on-dark" : "--heat-on-light";
  return paletteOf(getComputedStyle(document.documentElement).getPropertyValue(name), power);
}
