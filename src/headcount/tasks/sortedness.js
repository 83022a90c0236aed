// Rows of numbers that people type or draw (sortedness.py): what is right, and ways to change a row.

LIVE_TASKS.sortedness = ({ n_values: nValues }) => {
  const [UNSORTED, SORTED] = [0, 1];
  const random = (n) => Math.floor(Math.random() * n);
  const inOrder = (row) => [...row].sort((a, b) => a - b);
  const isBroken = (row, i) => row[i] > row[i + 1];
  const broken = (row) => row.flatMap((_, i) => (isBroken(row, i) ? [i] : []));
  const fresh = (length) => Array.from({ length }, () => random(nValues));
  const swapped = (row, i) => row.map((value, at) => (at === i ? row[i + 1] : at === i + 1 ? row[i] : value));
  return {
    hint: `numbers from 0 to ${nValues - 1}, such as 3 5 5 9`,
    highest: nValues - 1,
    parse(text) {
      const parts = text
        .trim()
        .split(/[\s,]+/)
        .filter(Boolean);
      const wrong = parts.find((part) => !/^[0-9]{1,6}$/.test(part) || Number(part) >= nValues);
      if (!parts.length) return { error: `Write numbers from 0 to ${nValues - 1} with spaces between them.` };
      if (wrong !== undefined) return { error: `‘${wrong}’ is not a number from 0 to ${nValues - 1}.` };
      return this.read(parts.map(Number));
    },
    read: (row) => ({ text: row.join(" "), source: row, right: [broken(row).length ? UNSORTED : SORTED] }),
    /** Places whose number is larger than the next one. */
    marks: broken,
    marked: "a number that is larger than the next one",
    start: () => inOrder(fresh(12)),
    /** Longer rows get new numbers between the old ones; what was sorted stays sorted. */
    resize(row, length) {
      if (length <= row.length) return row.slice(0, length);
      const longer = [...row];
      while (longer.length < length) {
        const at = random(longer.length);
        const [low, high] = [longer[at], longer[at + 1] ?? nValues - 1];
        longer.splice(at + 1, 0, low <= high ? low + random(high - low + 1) : low);
      }
      return longer;
    },
    actions: [
      { label: "New sorted row", act: (row) => inOrder(fresh(row.length)) },
      {
        label: "Break one pair",
        act(row) {
          const steps = row.flatMap((value, i) => (value < row[i + 1] ? [i] : []));
          return steps.length ? swapped(row, steps[random(steps.length)]) : row;
        },
      },
      {
        label: "Shuffle",
        act: (row) =>
          row
            .map((value) => [Math.random(), value])
            .sort(([a], [b]) => a - b)
            .map(([, value]) => value),
      },
      { label: "Sort", act: inOrder },
    ],
  };
};
