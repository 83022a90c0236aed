// Attention weights: as the page carries them, and as pixels. A weight is a byte, in hundredths.

const WHOLE = 100;

/** The bytes behind base 64 of a zlib stream. */
async function unpack(base64) {
  const letters = atob(base64.trim());
  const packed = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i += 1) packed[i] = letters.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** For each page and site where its weights begin, and how many rows and columns each head has. */
function layOut({ pages, sites }) {
  let end = 0;
  return pages.map((page) =>
    sites.map((site, i) => {
      const [rows, columns] = page.axes[i].map((axis) => page.tokens[axis].length);
      const start = end;
      end += site.heads.length * rows * columns;
      return { start, rows, columns };
    }),
  );
}

/** One head's matrix; it shares its bytes with all others. */
function matrixOf(bytes, { start, rows, columns }, head) {
  const size = rows * columns;
  return { rows, columns, bytes: bytes.subarray(start + head * size, start + (head + 1) * size) };
}

const weightAt = ({ bytes, columns }, row, column) => bytes[row * columns + column];

const inDigits = (weight) => (weight / WHOLE).toFixed(2);

/** The column with the largest weight of a row. */
function largestInRow({ bytes, columns }, row) {
  const line = bytes.subarray(row * columns, (row + 1) * columns);
  return line.indexOf(Math.max(...line));
}

/** The row with the largest weight of a column. */
function largestInColumn(matrix, column) {
  const line = Array.from({ length: matrix.rows }, (_, row) => weightAt(matrix, row, column));
  return line.indexOf(Math.max(...line));
}

// --- pixels ----------------------------------------------------------------------------------------------------------

/** No more cells than pixels. Where cells share a pixel it shows the largest, or a thin diagonal would fade away. */
function pooled(matrix, pixelsDown, pixelsAcross) {
  const { rows, columns, bytes } = matrix;
  const [height, width] = [Math.min(rows, pixelsDown), Math.min(columns, pixelsAcross)];
  if (height === rows && width === columns) return matrix;
  const found = new Uint8Array(height * width);
  const x = Uint16Array.from({ length: columns }, (_, column) => Math.floor((column * width) / columns));
  for (let row = 0, at = 0; row < rows; row += 1) {
    const line = Math.floor((row * height) / rows) * width;
    for (let column = 0; column < columns; column += 1, at += 1) {
      if (bytes[at] > found[line + x[column]]) found[line + x[column]] = bytes[at];
    }
  }
  return { rows: height, columns: width, bytes: found };
}

/** A colour for each weight, between those that the style names: as channels, and packed as pixels are. */
function paletteOf(hexes, power = 1) {
  const stops = hexes.trim().split(/\s+/).map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));
  const channels = Array.from({ length: WHOLE + 1 }, (_, weight) => {
    const place = (weight / WHOLE) ** power * (stops.length - 1);
    const below = Math.min(Math.floor(place), stops.length - 2);
    return stops[below].map((low, i) => Math.round(low + (place - below) * (stops[below + 1][i] - low)));
  });
  const pack = ([red, green, blue]) => ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
  return { channels, packed: Uint32Array.from(channels, pack) };
}

/** A pixel for each cell, where there is room: the style stretches them. */
function paint(canvas, matrix, palette) {
  const inPixels = (side) => Math.ceil(side * devicePixelRatio) || 64;
  const { rows, columns, bytes } = pooled(matrix, inPixels(canvas.clientHeight), inPixels(canvas.clientWidth));
  const image = new ImageData(columns, rows);
  const pixels = new Uint32Array(image.data.buffer);
  for (let i = 0; i < bytes.length; i += 1) pixels[i] = palette.packed[bytes[i]];
  [canvas.width, canvas.height] = [columns, rows];
  canvas.getContext("2d").putImageData(image, 0, 0);
}

/** Black or white, whichever is read better on this colour. */
function inkOn(channels) {
  const [red, green, blue] = channels.map((each) => (each / 255) ** 2.2);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000000" : "#ffffff";
}
