// In the head of the page, before anything is drawn: a remembered theme must not flash in after the other one.
(() => {
  try {
    const theme = localStorage.getItem("headcount-theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch {
    // Some browsers forbid files from disk to remember anything: then the system's theme it is.
  }
})();
