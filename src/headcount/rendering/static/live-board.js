// Every head of a live model as a tile: its attention on this example, whether it is on, and what its loss costs.

const NOTICEABLE = 0.02; // of attention: a tile that differs by more from the whole model's is marked

/** A head's weights in hundredths, as maps are painted from. */
function matrixFrom({ rows, columns, weights }) {
  return { rows, columns, bytes: Uint8Array.from(weights, (weight) => Math.round(WHOLE * weight)) };
}

function largestChange(one, other) {
  if (!other || one.weights.length !== other.weights.length) return 0;
  return one.weights.reduce((most, weight, i) => Math.max(most, Math.abs(weight - other.weights[i])), 0);
}

/** In the order in which a model computes them: in a decoder, self-attention and cross-attention take turns. */
const byOrder = (one, other) => (one.stack === other.stack && one.layer - other.layer) || 0;

class HeadBoard {
  /** `toggled(short)` is told which head a reader switches; `namesOf(site)` gives the tokens of queries and keys. */
  constructor(name, toggled, namesOf) {
    Object.assign(this, { name, toggled, namesOf, tiles: [], looked: null });
    const point = (row, column) => this.large.point(row, column);
    this.large = new LargeView(point, () => {});
    this.large.enlarge.remove();
    const words = "Heads: arrow keys move between them, Enter switches one off or on";
    this.heads = make("div", { class: "heads", role: "group", "aria-label": words });
    this.arrows = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    this.arrows.setAttribute("class", "arrows");
    this.arrows.setAttribute("role", "img");
    this.arrows.setAttribute("aria-label", "No route is shown");
    this.element = make(
      "div",
      { class: "board beside" },
      make("div", { class: "heads-box" }, this.heads, this.arrows),
      this.large.element,
    );
    this.heads.addEventListener("click", (event) => this.onTile(event, (tile) => this.toggled(tile.short)));
    for (const kind of ["pointerover", "focusin"]) {
      this.heads.addEventListener(kind, (event) => this.onTile(event, (tile) => this.look(tile)));
    }
    this.heads.addEventListener("keydown", (event) => this.onTile(event, (tile) => this.onKey(event, tile)));
    onThemeChange(() => this.shown && this.show(...this.shown));
    for (const [kind, isPrinted] of [
      ["beforeprint", true],
      ["afterprint", false],
    ]) {
      addEventListener(kind, () => {
        this.isPrinted = isPrinted;
        if (this.shown) this.show(...this.shown);
      });
    }
    new ResizeObserver(() => this.onResize()).observe(this.element);
  }

  /** The tiles of another model. */
  setModel({ architecture, worth }) {
    this.sites = architecture.sites.filter((site) => site.heads.length).sort(byOrder);
    this.tiles = this.sites.flatMap((site) => site.heads.map((short) => this.tileOf(site, short, worth?.[short])));
    const rows = this.sites.map((site) => {
      const heading = make("h3", { id: `${this.name}-${site.name}` }, siteTitle(site));
      const tiles = this.tiles.filter((tile) => tile.site === site).map(({ button }) => button);
      const row = make("div", { class: "thumbs" }, ...tiles);
      return make("div", { class: "site", role: "group", "aria-labelledby": heading.id }, heading, row);
    });
    this.rows = new Map(this.sites.map((site, i) => [site, rows[i]]));
    this.heads.replaceChildren(...rows);
    this.byButton = new Map(this.tiles.map((tile) => [tile.button, tile]));
    Object.assign(this, { looked: this.tiles[0] ?? null, route: null, places: new Map() });
    if (this.looked) this.looked.button.tabIndex = 0;
  }

  tileOf(site, short, worth) {
    const canvas = make("canvas", { "aria-hidden": "true" });
    const state = make("span", { class: "state" });
    const button = make("button", {
      type: "button",
      class: "thumb live-tile",
      tabindex: "-1",
      "aria-pressed": "false",
    });
    button.append(make("span", { class: "pixels" }, canvas), make("span", { class: "short" }, short, " ", state));
    if (worth) button.append(make("span", { class: "worth" }, worth));
    return { site, short, worth, canvas, state, button };
  }

  /** `heads` as they are now, `whole` as they are with all heads on; `replaced` maps heads to what replaces them. */
  show(heads, whole, replaced, step) {
    this.shown = [heads, whole, replaced, step];
    this.palette = paletteNow(1, this.isPrinted);
    for (const tile of this.tiles) {
      tile.matrix = matrixFrom(heads[tile.short]);
      tile.canvas.style.aspectRatio = proportions(tile.matrix);
      paint(tile.canvas, tile.matrix, this.palette);
      const by = replaced.get(tile.short);
      const isChanged = !by && largestChange(heads[tile.short], whole[tile.short]) > NOTICEABLE;
      tile.button.setAttribute("aria-pressed", Boolean(by));
      tile.button.classList.toggle("changed", isChanged);
      tile.state.textContent = by ?? (isChanged ? "changed" : "");
      tile.button.title = by ? "Click to switch it on again" : "Click to switch it off";
    }
    this.mark(step);
    this.look(this.looked);
  }

  /** Marks the row of the query that writes one token of the answer. */
  mark(step) {
    for (const [site, element] of this.rows) {
      const tile = this.tiles.find((each) => each.site === site);
      const isWritten = step !== null && step !== undefined && site.stack === "decoder";
      markShare(element, "row", isWritten ? step : null, tile.matrix.rows);
    }
  }

  look(tile) {
    const isSame =
      this.looked === tile && tile?.matrix && this.large.view?.matrix.bytes.length === tile.matrix.bytes.length;
    this.looked = tile;
    if (!tile?.matrix) return;
    if (!isSame) this.large.point(null, null);
    const [queries, keys] = this.namesOf(tile.site);
    const about = [siteTitle(tile.site), tile.worth && `${tile.worth} points when ablated`].filter(Boolean).join(", ");
    const named = (tokens) => tokens.map((token) => `‘${token}’`);
    const view = { title: tile.short, about, queries, keys, queryNames: named(queries), keyNames: named(keys) };
    this.large.show({ ...view, matrix: tile.matrix }, this.palette);
  }

  onTile(event, act) {
    const tile = this.byButton?.get(event.target.closest(".thumb"));
    if (tile) act(tile);
  }

  onKey(event, tile) {
    const next = Patterns.prototype.neighbour.call(
      { thumbs: this.indexed() },
      event.key,
      this.indexed().find((each) => each.tile === tile),
    );
    if (!next) return;
    event.preventDefault();
    for (const { button } of this.tiles) button.tabIndex = -1;
    next.tile.button.tabIndex = 0;
    next.tile.button.focus();
  }

  indexed() {
    return this.tiles.map((tile) => {
      const site = this.sites.indexOf(tile.site);
      const place = this.places.get(tile) ?? { tile, site, head: tile.site.heads.indexOf(tile.short) };
      this.places.set(tile, place);
      return place;
    });
  }

  onResize() {
    if (!this.shown) return;
    this.element.classList.toggle("beside", this.element.clientWidth >= ROOM_BESIDE);
    this.heads.style.setProperty(
      "--columns",
      columnsFor(Math.max(...this.sites.map(({ heads }) => heads.length)), this.heads.clientWidth),
    );
    this.large.resize();
    this.drawRoute(this.route);
  }

  // --- the route of an event -----------------------------------------------------------------------------------------

  /** Arrows between the heads that move an event, in the order of layers; their widths are the measured shares. */
  drawRoute(route) {
    this.route = route;
    const box = this.arrows.parentElement.getBoundingClientRect();
    for (const tile of this.tiles) {
      const share = route?.heads.find((each) => each.short === tile.short);
      tile.button.classList.toggle("mover", Boolean(share));
      tile.mover?.remove();
      tile.mover = share && make("span", { class: "worth" }, `moves ${Math.round(100 * share.share)} %`);
      if (tile.mover) tile.button.append(tile.mover);
    }
    const shares = route?.heads.map(({ short, share }) => `${short} moves ${Math.round(100 * share)} %`) ?? [];
    this.arrows.setAttribute("aria-label", route ? `Route ${route.title}: ${shares.join(", ")}` : "No route is shown");
    if (!route) return this.arrows.replaceChildren();
    this.arrows.setAttribute("viewBox", `0 0 ${box.width} ${box.height}`);
    const groups = this.sites
      .map((site) => this.tiles.filter((tile) => tile.site === site && tile.mover))
      .filter((group) => group.length);
    const ends = groups.map((group) => group.map((tile) => this.middleOf(tile, route, box)));
    const lines = ends
      .slice(1)
      .flatMap((group, i) => ends[i].flatMap((from) => group.map((to) => arrowFrom(from, to))));
    this.arrows.replaceChildren(...lines);
  }

  middleOf(tile, route, box) {
    const { left, top, width, height } = tile.button.getBoundingClientRect();
    const { share } = route.heads.find((each) => each.short === tile.short);
    return { x: left - box.left + width / 2, top: top - box.top + 3, bottom: top - box.top + height, share };
  }
}

function arrowFrom(from, to) {
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  const [x1, y1, x2, y2] = [from.x, from.bottom, to.x, to.top - 3];
  const bend = Math.max(12, (y2 - y1) / 2);
  path.setAttribute("d", `M${x1},${y1} C${x1},${y1 + bend} ${x2},${y2 - bend} ${x2},${y2} m-5,-7 l5,7 l5,-7`);
  path.setAttribute("stroke-width", String(1 + 5 * Math.min(from.share, to.share)));
  return path;
}
