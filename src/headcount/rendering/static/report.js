// What readers do with the page around the heads: sort tables, copy commands, choose a theme, find their way.

// --- tables ----------------------------------------------------------------------------------------------------------

const byText = new Intl.Collator("en", { numeric: true });

/** Up, down, and as it was. Equal rows keep their order, and what has no number comes last either way. */
function makeSortable(table) {
  const rows = [...table.tBodies[0].rows];
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    heading.querySelector("button").addEventListener("click", () => {
      const order = { ascending: "descending", descending: null }[heading.getAttribute("aria-sort")];
      const wanted = order === undefined ? "ascending" : order;
      for (const each of headings) each.removeAttribute("aria-sort");
      if (wanted) heading.setAttribute("aria-sort", wanted);
      table.tBodies[0].append(...(wanted ? sorted(rows, column, wanted === "descending" ? -1 : 1) : rows));
      announce(wanted ? `sorted by ${heading.textContent}, ${wanted}` : "in the original order");
    });
  });
}

function sorted(rows, column, sign) {
  const valueOf = (row) => row.cells[column].dataset.value;
  const isNumeric = rows.some((row) => valueOf(row) !== undefined);
  const textOf = (row) => row.cells[column].textContent.trim();
  if (!isNumeric) return rows.toSorted((a, b) => sign * byText.compare(textOf(a), textOf(b)));
  const numberOf = (row) => (valueOf(row) === undefined ? NaN : Number(valueOf(row)));
  return rows.toSorted((a, b) => compareNumbers(numberOf(a), numberOf(b), sign));
}

function compareNumbers(a, b, sign) {
  if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b);
  return a === b ? 0 : sign * (a < b ? -1 : 1);
}

// --- the theme button ------------------------------------------------------------------------------------------------

function makeThemeButton(button) {
  const root = document.documentElement;
  const show = () => button.setAttribute("aria-pressed", isDark());
  button.addEventListener("click", () => {
    const wanted = isDark() ? "light" : "dark";
    if (wanted === (systemIsDark.matches ? "dark" : "light")) delete root.dataset.theme;
    else root.dataset.theme = wanted;
    remember("headcount-theme", root.dataset.theme);
  });
  onThemeChange(show);
  show();
}

/** If the browser lets a file from disk remember anything. */
function remember(name, value) {
  try {
    if (value === undefined) localStorage.removeItem(name);
    else localStorage.setItem(name, value);
  } catch {
    // The choice lasts as long as the page is open.
  }
}

// --- commands --------------------------------------------------------------------------------------------------------

function makeCopyButton(button) {
  const code = button.parentElement.querySelector("code");
  button.addEventListener("click", async () => {
    const isCopied = await copy(code);
    const words = isCopied ? "Copied" : "The command is selected: copy it with the keyboard";
    announce(words);
    button.textContent = isCopied ? "Copied" : "Selected";
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
}

/** By the clipboard, or, where a file from disk may not use it, by a selection, which at least stays. */
async function copy(element) {
  try {
    await navigator.clipboard.writeText(element.textContent);
    return true;
  } catch {
    getSelection().selectAllChildren(element);
    return document.execCommand("copy");
  }
}

// --- finding one's way -----------------------------------------------------------------------------------------------

/** The section that is being read: the last one that has begun in the upper part of the window. */
function followContents(nav) {
  const links = new Map([...nav.querySelectorAll("a")].map((link) => [link.hash.slice(1), link]));
  const sections = [...links.keys()].map((id) => document.getElementById(id)).filter(Boolean);
  const inView = new Set();
  const show = (current) => {
    for (const [id, link] of links) link.toggleAttribute("aria-current", id === current?.id);
    links.get(current?.id)?.setAttribute("aria-current", "true");
  };
  const watch = new IntersectionObserver(
    (entries) => {
      for (const { target, isIntersecting } of entries) inView[isIntersecting ? "add" : "delete"](target);
      if (inView.size) show(sections.findLast((section) => inView.has(section)));
    },
    { rootMargin: "0px 0px -75% 0px" },
  );
  for (const section of sections) watch.observe(section);
  addEventListener("hashchange", () => links.has(location.hash.slice(1)) && show({ id: location.hash.slice(1) }));
}

/** A list beside the text, or on a narrow window one that is opened when it is wanted. */
function foldContents(nav) {
  const list = nav.querySelector("details");
  const isWide = matchMedia("(min-width: 70rem)");
  const fold = () => (list.open = isWide.matches);
  isWide.addEventListener("change", fold);
  list.addEventListener("click", (event) => event.target.closest("a") && fold());
  fold();
}

/** A figure shrinks with the window until its text would be too small; then it is scrolled. */
function keepLegible(drawing) {
  drawing.style.minWidth = `${0.72 * drawing.width.baseVal.value}px`;
}

// --- what is folded --------------------------------------------------------------------------------------------------

const allFolds = () => document.querySelectorAll("main details");

/** A link leads to what it names, also if that is folded. */
function openTarget() {
  const target = document.getElementById(location.hash.slice(1).split("?")[0]);
  if (!target?.closest("main")) return;
  for (let fold = target.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
  const own = target.querySelector(":scope > details");
  if (own) own.open = true;
  if (!location.hash.includes("?")) target.scrollIntoView({ behavior: "instant" });
}

/** Paper shows everything, unless a reader asks for what is open. */
function unfoldForPrint(printButton) {
  let [before, asShown] = [[], false];
  addEventListener("beforeprint", () => {
    if (asShown) return;
    before = [...allFolds()].filter((fold) => !fold.open);
    for (const fold of before) fold.open = true;
  });
  addEventListener("afterprint", () => {
    for (const fold of before) fold.open = false;
    [before, asShown] = [[], false];
  });
  printButton?.addEventListener("click", () => {
    asShown = true;
    print();
  });
}

function makeOpenAll(button) {
  let isOpen = false;
  button?.addEventListener("click", () => {
    isOpen = !isOpen;
    for (const fold of allFolds()) fold.open = isOpen;
    button.textContent = isOpen ? "Close all" : "Open all";
  });
}

// --- in a notebook ---------------------------------------------------------------------------------------------------

/** Makes a notebook's frame as high as the page in it; where that is forbidden, the frame is scrolled. */
function fitFrame() {
  const frame = ownFrame();
  if (!frame?.classList.contains("headcount-frame")) return;
  const fit = () => (frame.style.height = `${Math.ceil(document.body.getBoundingClientRect().height)}px`);
  new ResizeObserver(fit).observe(document.body);
  fit();
}

function ownFrame() {
  try {
    return window.frameElement;
  } catch {
    return null; // A notebook of another origin keeps its frames to itself.
  }
}

// --- all of it -------------------------------------------------------------------------------------------------------

const afterPaint = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));

async function start() {
  fitFrame();
  makeOpenAll(document.getElementById("open-all"));
  unfoldForPrint(document.getElementById("print"));
  addEventListener("hashchange", openTarget);
  document.addEventListener("click", ({ target }) => {
    const link = target.closest?.("a[href^='#']");
    if (link && link.hash === location.hash) openTarget(); // the address does not change, so nothing else would open it
  });
  openTarget();
  const nav = document.querySelector("nav");
  followContents(nav);
  foldContents(nav);
  makeThemeButton(document.getElementById("theme"));
  document.querySelectorAll("table.sortable").forEach(makeSortable);
  document.querySelectorAll("button.copy").forEach(makeCopyButton);
  document.querySelectorAll(".picture > svg").forEach(keepLegible);
  document.querySelectorAll(".scroll, .formula math").forEach((box) => boxSizes.observe(box));
  addEventListener("scroll", hideTip, { passive: true });
  const books = [...document.querySelectorAll("figure.patterns-figure")].map((figure) => new Patterns(figure));
  const kinds = { sequence: LiveSequence, class: LiveRow };
  const figures = [...document.querySelectorAll("figure.live-figure")];
  const lives = figures.map((figure) => new kinds[figure.dataset.kind](figure));
  await afterPaint();
  for (const live of lives) await live.load();
  for (const book of books) await book.load();
}

start();
