// What every part of the page is built with: elements, text that can be seen, tips, messages, the theme.

/** An element. What is inside is text unless it is an element: nothing that comes from outside becomes markup. */
function make(name, attributes = {}, ...inside) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(key, "");
    else if (value !== false && value !== null) element.setAttribute(key, value);
  }
  element.append(...inside);
  return element;
}

const UNSEEN = /[\p{C}\p{Zl}\p{Zp}]|(?! )\p{Zs}/gu;
const ESCAPES = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };

/** Text with letters that steer the page or the direction of text written out, as the rest of the page has them. */
function visible(text) {
  return text.replace(UNSEEN, (letter) => {
    const code = letter.codePointAt(0).toString(16);
    return ESCAPES[letter] ?? (code.length <= 2 ? `\\x${code.padStart(2, "0")}` : `\\u${code.padStart(4, "0")}`);
  });
}

/** A token: one of nothing but spaces would look like none. */
const visibleToken = (token) => (/^ *$/.test(token) ? "␣".repeat(Math.max(1, token.length)) : visible(token));

const cut = (text, most) => (text.length <= most ? text : `${[...text].slice(0, most - 1).join("")}…`);

// --- tips and messages -----------------------------------------------------------------------------------------------

const TIP_GAP = 14;

/** A tip beside the pointer; at the edges of the window on its other side. */
function showTip(text, x, y) {
  const tip = document.getElementById("tip");
  tip.textContent = text;
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const beside = (at, size, room) => (at + TIP_GAP + size <= room ? at + TIP_GAP : at - TIP_GAP - size);
  const inside = (at, size, room) => Math.max(4, Math.min(at, room - size - 4));
  const [across, down] = [document.documentElement.clientWidth, window.innerHeight];
  tip.style.left = `${inside(beside(x, width, across), width, across)}px`;
  tip.style.top = `${inside(beside(y, height, down), height, down)}px`;
}

function hideTip() {
  document.getElementById("tip").hidden = true;
}

/** To those who listen to the page. */
function announce(text) {
  const status = document.getElementById("status");
  status.textContent = status.textContent === text ? `${text}\u00a0` : text; // the same words twice would be silent
}

// --- boxes that scroll -----------------------------------------------------------------------------------------------

/** Keys can scroll what Tab stops at: that is what can be scrolled, and nothing else. */
function setStop(box) {
  const scrolls = box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight;
  if (scrolls) box.tabIndex = 0;
  else box.removeAttribute("tabindex");
}

const boxSizes = new ResizeObserver((entries) => entries.forEach(({ target }) => setStop(target)));

// --- the theme -------------------------------------------------------------------------------------------------------

const systemIsDark = matchMedia("(prefers-color-scheme: dark)");

/** What is shown: what was pressed, else what the system wants. */
function isDark() {
  const { theme } = document.documentElement.dataset;
  return theme ? theme === "dark" : systemIsDark.matches;
}

function onThemeChange(act) {
  new MutationObserver(act).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  systemIsDark.addEventListener("change", act);
}
