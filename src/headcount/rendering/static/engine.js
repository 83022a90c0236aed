// A transformer in plain JavaScript: the models that headcount trains, one example at a time (src/headcount/models).
// Vectors lie one after another in a Float32Array; sums are taken in double precision, as every number in JavaScript.

const NORM_EPSILON = 1e-5; // torch's LayerNorm

// --- arrays ----------------------------------------------------------------------------------------------------------

const ARRAY_TYPES = { half: Uint16Array, single: Float32Array, integer: Uint16Array };

/** The arrays of a model by name, from [name, shape, type] and their bytes in the same order. */
function readArrays(list, bytes) {
  const arrays = {};
  let at = 0;
  for (const [name, shape, type] of list) {
    const size = shape.reduce((product, side) => product * side, 1);
    const Kind = ARRAY_TYPES[type];
    const raw = new Kind(inOrder(bytes, at, size, Kind.BYTES_PER_ELEMENT).buffer);
    arrays[name] = { shape, data: type === "half" ? fromHalf(raw) : raw };
    at += size * Kind.BYTES_PER_ELEMENT;
  }
  return arrays;
}

/** The page holds the first bytes of all numbers, then the second ones, because that compresses better. */
function inOrder(bytes, start, size, width) {
  const ordered = new Uint8Array(size * width);
  for (let i = 0; i < size; i += 1) {
    for (let part = 0; part < width; part += 1) ordered[i * width + part] = bytes[start + part * size + i];
  }
  return ordered;
}

/** Half precision has a sign, five bits of exponent and ten of fraction. */
function fromHalf(raw) {
  return Float32Array.from(raw, (bits) => {
    const [sign, exponent, fraction] = [bits >> 15 ? -1 : 1, (bits >> 10) & 31, bits & 1023];
    if (exponent === 31) return fraction ? NaN : sign * Infinity;
    return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
  });
}

/** x W' + b for each of n rows; four sums at once keep the processor busy: of four rows, or of quarters of one. */
function linear(x, n, weight, bias) {
  const [nOut, nIn] = weight.shape;
  const [w, b, y] = [weight.data, bias?.data, new Float32Array(n * nOut)];
  let row = 0;
  for (; row + 3 < n; row += 4) {
    const start = row * nIn;
    for (let out = 0; out < nOut; out += 1) {
      let [s0, s1, s2, s3] = [0, 0, 0, 0];
      for (let i = 0, at = out * nIn, from = start; i < nIn; i += 1, at += 1, from += 1) {
        const each = w[at];
        s0 += x[from] * each;
        s1 += x[from + nIn] * each;
        s2 += x[from + 2 * nIn] * each;
        s3 += x[from + 3 * nIn] * each;
      }
      const [to, shift] = [row * nOut + out, b ? b[out] : 0];
      y[to] = s0 + shift;
      y[to + nOut] = s1 + shift;
      y[to + 2 * nOut] = s2 + shift;
      y[to + 3 * nOut] = s3 + shift;
    }
  }
  for (; row < n; row += 1) {
    const start = row * nIn;
    for (let out = 0; out < nOut; out += 1) {
      let [i, at] = [0, out * nIn];
      let [s0, s1, s2, s3] = [0, 0, 0, 0];
      for (; i + 3 < nIn; i += 4, at += 4) {
        s0 += x[start + i] * w[at];
        s1 += x[start + i + 1] * w[at + 1];
        s2 += x[start + i + 2] * w[at + 2];
        s3 += x[start + i + 3] * w[at + 3];
      }
      for (; i < nIn; i += 1, at += 1) s0 += x[start + i] * w[at];
      y[row * nOut + out] = s0 + s1 + s2 + s3 + (b ? b[out] : 0);
    }
  }
  return y;
}

function layerNorm(x, n, { weight, bias }) {
  const [width, y] = [weight.data.length, new Float32Array(x.length)];
  for (let row = 0; row < n; row += 1) {
    const start = row * width;
    let [sum, squares] = [0, 0];
    for (let i = start; i < start + width; i += 1) sum += x[i];
    const mean = sum / width;
    for (let i = start; i < start + width; i += 1) squares += (x[i] - mean) ** 2;
    const scale = 1 / Math.sqrt(squares / width + NORM_EPSILON);
    for (let i = 0; i < width; i += 1) y[start + i] = (x[start + i] - mean) * scale * weight.data[i] + bias.data[i];
  }
  return y;
}

function add(x, y) {
  for (let i = 0; i < x.length; i += 1) y[i] += x[i];
  return y;
}

function softmax(logits) {
  const most = Math.max(...logits);
  const powers = Array.from(logits, (logit) => Math.exp(logit - most));
  const sum = powers.reduce((total, each) => total + each, 0);
  return powers.map((each) => each / sum);
}

const largest = (values) => values.indexOf(Math.max(...values));

// --- encodings -------------------------------------------------------------------------------------------------------

const frequency = (i, width) => Math.exp(2 * i * (-Math.log(10000) / width));
const softplus = (x) => (x > 20 ? x : Math.log1p(Math.exp(x)));

/** Adds PE(p) to each row: sines at even places, cosines at odd ones. */
function addSinusoids(x, ids, width, step) {
  ids.forEach((id, row) => {
    for (let i = 0; i < width; i += 1) {
      const angle = id * step * frequency(i >> 1, width);
      x[row * width + i] += i % 2 ? Math.cos(angle) : Math.sin(angle);
    }
  });
}

/** Turns each pair of places of every head by an angle that grows with the id. */
function rotate(x, ids, width) {
  const perRow = x.length / ids.length;
  ids.forEach((id, row) => {
    for (let start = row * perRow; start < (row + 1) * perRow; start += width) {
      for (let i = 0; i + 1 < width; i += 2) {
        const angle = id * frequency(i >> 1, width);
        const [cos, sin, a, b] = [Math.cos(angle), Math.sin(angle), x[start + i], x[start + i + 1]];
        x[start + i] = a * cos - b * sin;
        x[start + i + 1] = a * sin + b * cos;
      }
    }
  });
}

class PositionEncoding {
  constructor(settings, arrays) {
    [this.settings, this.kind, this.arrays] = [settings, settings.kind, arrays];
    if (this.kind === "fire") this.prepareFire(settings.module);
  }

  prepareFire(module) {
    const part = (name) => this.arrays[`${module}.${name}`].data;
    const [first, bias, second, last] = ["0.weight", "0.bias", "2.weight", "2.bias"].map((name) =>
      part(`network.${name}`),
    );
    this.threshold = softplus(part("raw_threshold")[0]);
    this.psi = (x) => Math.log1p(softplus(part("raw_c")[0]) * x);
    this.network = (x, head) => {
      const n = first.length;
      return first.reduce((sum, w, i) => sum + Math.max(0, w * x + bias[i]) * second[head * n + i], last[head]);
    };
  }

  /** Consecutive ids, or the subset that training with random ids left for this length. */
  ids(n, first = 0) {
    const table = this.settings.ids && this.arrays[this.settings.ids];
    if (!table) return Array.from({ length: n }, (_, i) => first + i);
    return [...table.data.subarray((n - 1) * table.shape[1], (n - 1) * table.shape[1] + n)];
  }

  /** Adds the vectors of positions to embeddings in place; `total` is the length of the whole sequence. */
  addTo(x, ids, total) {
    const width = x.length / ids.length;
    const { table, places } = this.settings;
    if (this.kind === "sinusoidal") addSinusoids(x, ids, width, places ? places / total : 1);
    if (this.kind !== "table") return;
    const rows = this.arrays[table].data;
    ids.forEach((id, row) => {
      for (let i = 0; i < width; i += 1) x[row * width + i] += rows[id * width + i];
    });
  }

  /** The bias of a pair of ids in the scores of a head (its index in the whole block). */
  bias(query, key, head) {
    if (this.kind === "distance") {
      const { shape, data } = this.arrays[this.settings.table];
      return data[(key - query + this.settings.farthest) * shape[1] + head];
    }
    if (this.kind !== "fire") return 0;
    const reach = Math.max(query, key, this.threshold);
    const share = (this.psi(Math.abs(query - key)) / this.psi(reach)) * Math.sign(query - key);
    return this.network(share, head);
  }

  get hasBias() {
    return this.kind === "distance" || this.kind === "fire";
  }
}

// --- the engine ------------------------------------------------------------------------------------------------------

/** Runs a model. `replaced` maps the short name of a head to {rows, n, wraps}: what takes the place of its output. */
class Engine {
  constructor(architecture, arrays) {
    Object.assign(this, { architecture, arrays, sites: architecture.sites });
    this.width = architecture.width;
    this.headWidth = architecture.headWidth;
    this.source = new PositionEncoding(architecture.source, arrays);
    if (architecture.waves) arrays["tokens.weight"] = this.numbersAsWaves(architecture.waves);
    this.target = architecture.target && new PositionEncoding(architecture.target, arrays);
  }

  /** From a model's header and its arrays as the page carries them. */
  static async unpacked({ architecture, arrays }, text) {
    return new Engine(architecture, readArrays(arrays, await unpack(text)));
  }

  /** The vector of each number v < n: a linear map of 2v/n - 1, sin(k pi v/n) and cos(k pi v/n). */
  numbersAsWaves({ tokens, n }) {
    const waves = Float32Array.from({ length: tokens * (2 * n + 1) }, (_, i) => {
      const [share, at] = [Math.floor(i / (2 * n + 1)) / tokens, i % (2 * n + 1)];
      if (!at) return 2 * share - 1;
      return at <= n ? Math.sin(Math.PI * share * at) : Math.cos(Math.PI * share * (at - n));
    });
    return { shape: [tokens, this.width], data: this.linear(waves, tokens, "tokens.mix") };
  }

  part(name) {
    return this.arrays[name];
  }

  parts(module) {
    return { weight: this.arrays[`${module}.weight`], bias: this.arrays[`${module}.bias`] };
  }

  linear(x, n, module) {
    const { weight, bias } = this.parts(module);
    return linear(x, n, weight, bias);
  }

  norm(x, n, module) {
    return module && this.arrays[`${module}.weight`] ? layerNorm(x, n, this.parts(module)) : x;
  }

  embed(tokens, table) {
    const { data } = this.part(table);
    const x = new Float32Array(tokens.length * this.width);
    tokens.forEach((token, row) =>
      x.set(data.subarray(token * this.width, (token + 1) * this.width), row * this.width),
    );
    return x;
  }

  /** The stream after a block: LayerNorm before the block, or after the sum. */
  residual(x, n, norm, block) {
    if (this.architecture.isPreNorm) return add(x, block(this.norm(x, n, norm)));
    return this.norm(add(x, block(x)), n, norm);
  }

  layer(x, n, run, stack, layer) {
    for (const kind of ["self", "cross"]) {
      const site = this.sites.find((each) => each.stack === stack && each.layer === layer && each.kind === kind);
      if (site) x = this.residual(x, n, site.norm, (normed) => this.attention(normed, n, site, run));
    }
    const module = `${{ encoder: "encoder", decoder: "decoder", layer: "layers" }[stack]}.${layer}.feed_forward`;
    return this.residual(x, n, `${module}.residual.norm`, (normed) => {
      const hidden = this.linear(normed, n, `${module}.layers.0`);
      for (let i = 0; i < hidden.length; i += 1) if (hidden[i] < 0) hidden[i] = 0;
      return this.linear(hidden, n, `${module}.layers.2`);
    });
  }

  nLayers(stack) {
    return this.sites.filter((site) => site.stack === stack && site.kind === "self").length;
  }

  // --- attention -----------------------------------------------------------------------------------------------------

  attention(x, n, site, run) {
    if (!site.heads.length) {
      const { bias } = this.parts(`${site.module}.output`);
      return Float32Array.from({ length: n * this.width }, (_, i) => bias.data[i % this.width]);
    }
    const isCross = site.kind === "cross";
    const query = this.linear(x, n, `${site.module}.query`);
    const kept = this.keysAndValues(x, n, site, run);
    const encoding = isCross ? null : run.encoding;
    const queryIds = run.ids.slice(-n);
    if (encoding?.kind === "rotary") rotate(query, queryIds, this.headWidth);
    const seen = this.trace(run, site, kept.n);
    const z = new Float32Array(query.length);
    for (let head = 0; head < site.heads.length; head += 1) {
      this.attend(query, n, kept, site, head, encoding, run, z, seen);
    }
    this.replace(z, n, site, run);
    if (run.isTraced) seen.z.push(z);
    return this.linear(z, n, `${site.module}.output`);
  }

  /** In a decoder, the keys and values of earlier tokens are kept; those of the source are computed once. */
  keysAndValues(x, n, site, run) {
    const isCross = site.kind === "cross";
    const known = run.caches.get(site.name);
    if (isCross && known) return known;
    const [from, rows] = isCross ? [run.memory, run.nMemory] : [x, n];
    const key = this.linear(from, rows, `${site.module}.key`);
    const value = this.linear(from, rows, `${site.module}.value`);
    if (!isCross && run.encoding.kind === "rotary") rotate(key, run.ids.slice(-n), this.headWidth);
    const joined = (before, after) => {
      if (!before) return after;
      const both = new Float32Array(before.length + after.length);
      both.set(before);
      both.set(after, before.length);
      return both;
    };
    const kept = { key: joined(known?.key, key), value: joined(known?.value, value), n: (known?.n ?? 0) + rows };
    run.caches.set(site.name, kept);
    return kept;
  }

  /** One head: weights of all queries, and z = the weighted mean of values. */
  attend(query, n, { key, value, n: nKeys }, site, head, encoding, run, z, seen) {
    const [width, perRow] = [this.headWidth, site.heads.length * this.headWidth];
    const isSelf = site.kind === "self";
    const past = isSelf ? nKeys - n : 0;
    const window = isSelf ? this.architecture.window : null;
    const logScale = this.part(`${site.module}.log_n_scale`);
    const scores = new Float64Array(nKeys);
    for (let row = 0; row < n; row += 1) {
      const at = past + row;
      const first = window === null ? 0 : Math.max(0, at - window);
      const ahead = window === null ? nKeys : Math.min(nKeys, at + window + 1);
      const last = isSelf && run.isCausal ? Math.min(ahead, at + 1) : ahead;
      const scale = logScale ? logScale.data[head] * Math.log(Math.max(1, last - first)) : 1;
      const start = row * perRow + head * width;
      let most = -Infinity;
      for (let j = first; j < last; j += 1) {
        const from = j * perRow + head * width;
        let score = 0;
        for (let i = 0; i < width; i += 1) score += query[start + i] * key[from + i];
        score = (score / Math.sqrt(width)) * scale;
        if (encoding?.hasBias) {
          const bias = encoding.bias(run.ids[at], run.ids[j], site.kept[head]);
          score += bias === -Infinity ? bias : bias * scale;
        }
        scores[j] = score;
        if (score > most) most = score;
      }
      if (most === -Infinity) continue; // a query that sees no key adds nothing
      let sum = 0;
      for (let j = first; j < last; j += 1) sum += scores[j] = Math.exp(scores[j] - most);
      for (let j = first; j < last; j += 1) {
        const weight = scores[j] / sum;
        if (run.isTraced) seen.weights[head].push(j, weight);
        const from = j * perRow + head * width;
        for (let i = 0; i < width; i += 1) z[start + i] += weight * value[from + i];
      }
      seen.ends[head].push(seen.weights[head].length);
    }
  }

  trace(run, site, nKeys) {
    if (!run.seen[site.name]) {
      const empty = () => site.heads.map(() => []);
      run.seen[site.name] = { weights: empty(), ends: empty(), z: [], nKeys };
    }
    run.seen[site.name].nKeys = nKeys;
    return run.seen[site.name];
  }

  /** Puts zeros, a mean or another example's output in the place of a head's. */
  replace(z, n, site, run) {
    const [width, perRow] = [this.headWidth, site.heads.length * this.headWidth];
    site.heads.forEach((short, head) => {
      const other = run.replaced.get(short);
      if (!other) return;
      const first = run.ids.length - n;
      for (let row = 0; row < n; row += 1) {
        const [start, at] = [row * perRow + head * width, first + row];
        const from = other.rows && (other.wraps ? at % other.n : at) * width;
        for (let i = 0; i < width; i += 1) z[start + i] = other.rows ? other.rows[from + i] : 0;
      }
    });
  }

  // --- both kinds of model -------------------------------------------------------------------------------------------

  newRun(encoding, { replaced = new Map(), isTraced = true }, isCausal) {
    return {
      encoding,
      replaced,
      isTraced,
      isCausal,
      ids: [],
      caches: new Map(),
      seen: {},
      memory: null,
      nMemory: 0,
    };
  }

  stack(tokens, table, stack, run) {
    run.ids = run.encoding.ids(tokens.length);
    let x = this.embed(tokens, table);
    run.encoding.addTo(x, run.ids, tokens.length);
    for (let layer = 0; layer < this.nLayers(stack); layer += 1) x = this.layer(x, tokens.length, run, stack, layer);
    return x;
  }

  /** What the heads did: weights [query x key] and z [query x head width] of each, by its short name. */
  heads(...runs) {
    const found = {};
    for (const site of this.sites) {
      const seen = runs.map((run) => run.seen[site.name]).find(Boolean);
      if (!seen) continue;
      const perRow = site.heads.length * this.headWidth;
      const z = seen.z.length === 1 ? seen.z[0] : Float32Array.from(seen.z.flatMap((part) => [...part]));
      site.heads.forEach((short, head) => {
        const rows = seen.ends[head].length;
        const weights = new Float32Array(rows * seen.nKeys);
        let at = 0;
        seen.ends[head].forEach((end, row) => {
          for (; at < end; at += 2) weights[row * seen.nKeys + seen.weights[head][at]] = seen.weights[head][at + 1];
        });
        const own = new Float32Array(rows * this.headWidth);
        for (let row = 0; row < rows; row += 1) {
          const start = row * perRow + head * this.headWidth;
          own.set(z.subarray(start, start + this.headWidth), row * this.headWidth);
        }
        found[short] = { rows, columns: seen.nKeys, weights, z: own };
      });
    }
    return found;
  }

  /** Decodes an answer of `n` tokens, greedily, from the token `first`; `forced` are tokens to feed instead. */
  answer(source, { first, n, forced = null, ...how }) {
    const encoder = this.newRun(this.source, how, false);
    const memory = this.norm(
      this.stack(source, "source_tokens.weight", "encoder", encoder),
      source.length,
      "encoder_norm",
    );
    const decoder = this.newRun(this.target, how, true);
    Object.assign(decoder, { memory, nMemory: source.length });
    const [tokens, logits] = [[], []];
    for (let step = 0; step < n; step += 1) {
      const fed = forced ? forced[step] : step ? tokens[step - 1] : first;
      decoder.ids.push(step);
      let x = this.embed([fed], "target_tokens.weight");
      this.target.addTo(x, [step], step + 1);
      for (let layer = 0; layer < this.nLayers("decoder"); layer += 1) x = this.layer(x, 1, decoder, "decoder", layer);
      logits.push(this.linear(this.norm(x, 1, "decoder_norm"), 1, "to_logits"));
      tokens.push(largest(logits[step]));
    }
    return { tokens, logits, heads: () => this.heads(encoder, decoder) };
  }

  /** The logits of the classes, and what each position adds to the first class's lead over the last one. */
  classify(source, how = {}) {
    const run = this.newRun(this.source, how, this.architecture.isCausal);
    const x = this.norm(this.stack(source, "tokens.weight", "layer", run), source.length, "norm");
    const { weight, bias } = this.parts("to_logits");
    const nClasses = bias.data.length;
    const logits = Float32Array.from(bias.data);
    const evidence = new Float32Array(source.length);
    const width = weight.shape[1];
    POOLINGS[this.architecture.pooling](x, source.length, this.width, this.arrays, (at, dimension, value) => {
      for (let each = 0; each < nClasses; each += 1) logits[each] += value * weight.data[each * width + dimension];
      evidence[at] += value * (weight.data[dimension] - weight.data[(nClasses - 1) * width + dimension]);
    });
    return { logits, evidence, heads: () => this.heads(run) };
  }
}

// --- poolings --------------------------------------------------------------------------------------------------------
// Each calls give(position, dimension, value): a pooled vector is the sum of what its positions give.

function giveLargest(x, n, width, give, sign = 1, offset = 0) {
  for (let i = 0; i < width; i += 1) {
    let at = 0;
    for (let row = 1; row < n; row += 1) if (sign * x[row * width + i] > sign * x[at * width + i]) at = row;
    give(at, offset + i, x[at * width + i]);
  }
}

function giveRow(x, row, width, give, offset = 0, scale = 1) {
  for (let i = 0; i < width; i += 1) give(row, offset + i, scale * x[row * width + i]);
}

const scoresOf = (x, n, arrays) => linear(x, n, arrays["pooling.score.weight"], arrays["pooling.score.bias"]);

const POOLINGS = {
  max: (x, n, width, _, give) => giveLargest(x, n, width, give),
  min: (x, n, width, _, give) => giveLargest(x, n, width, give, -1),
  mean: (x, n, width, _, give) => {
    for (let row = 0; row < n; row += 1) giveRow(x, row, width, give, 0, 1 / n);
  },
  first: (x, n, width, _, give) => giveRow(x, 0, width, give),
  last: (x, n, width, _, give) => giveRow(x, n - 1, width, give),
  attention: (x, n, width, arrays, give) => {
    softmax(scoresOf(x, n, arrays)).forEach((weight, row) => giveRow(x, row, width, give, 0, weight));
  },
  "lse-max": (x, n, width, _, give) => giveLargest(x, n, width, give),
  "score-max": (x, n, width, arrays, give) => {
    const scores = scoresOf(x, n, arrays);
    giveLargest(scores, n, 1, give);
    giveLargest(scores, n, 1, give, -1, 1);
  },
  "top-score": (x, n, width, arrays, give) => giveLargest(scoresOf(x, n, arrays), n, 1, give),
  "neighbour-difference": (x, n, width, _, give) => {
    giveLargest(x, n, width, give, -1);
    const steps = new Float32Array((n - 1) * width);
    for (let i = 0; i < steps.length; i += 1) steps[i] = x[i + width] - x[i];
    if (n > 1) giveLargest(steps, n - 1, width, (at, i, value) => give(at + 1, i, value), -1, width);
    for (let row = 1; row < n; row += 1) {
      giveRow(steps, row - 1, width, (at, i, value) => give(row, i, value), 2 * width, 1 / (n - 1));
    }
    giveRow(x, 0, width, give, 3 * width);
    giveRow(x, n - 1, width, give, 4 * width);
  },
};
