/**
 * Images: how files become them, and how they are shown and told.
 *
 * @typedef {Object} Image
 * @property {string} id
 * @property {string} name
 * @property {string} url The file as a data: URL; "" where it was not kept.
 * @property {number} width In pixels.
 * @property {number} height
 */

import { make, newId, shown } from "./dom.js";

const LARGEST_FILE = 64 << 20;
// What a server reads; other formats that the browser knows are written anew.
const KNOWN = ["image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp"];
// Drawings and pictures of screens, which JPEG would blur.
const SHARP = ["image/png", "image/gif", "image/bmp"];
// Each request carries all images of its conversation again, and a photo of a phone would be 16 MB of it. Models see no
// more of one than this: the server reduces what is larger.
const LONGEST_SIDE = 2048;
const LARGEST_SENT = 4 << 20;
const JPEG_QUALITY = 0.9;
const TALLEST_SHOWN = 240;

/** Return whether a file is an image; a drawing in SVG is a text. */
export function isImageFile({ type }) {
  return type.startsWith("image/") && type !== "image/svg+xml";
}

/**
 * Return the image of a file, reduced where it is larger than a model looks at.
 * @param {File} file
 * @returns {Promise<Image>}
 */
export async function readImage(file) {
  if (file.size > LARGEST_FILE) throw new Error(`larger than ${shown(LARGEST_FILE >> 20)} MiB`);
  const bitmap = await createImageBitmap(file).catch(() => {
    throw new Error("not an image that this browser can read");
  });
  const scale = Math.min(1, LONGEST_SIDE / Math.max(bitmap.width, bitmap.height));
  const [width, height] = [bitmap.width, bitmap.height].map((side) => Math.max(1, Math.round(side * scale)));
  const isSent = scale === 1 && file.size <= LARGEST_SENT && KNOWN.includes(file.type);
  const url = await urlOf(isSent ? file : await drawn(bitmap, width, height, file.type));
  bitmap.close();
  return { id: newId(), name: file.name, url, width, height };
}

async function drawn(bitmap, width, height, type) {
  const canvas = make("canvas", { width, height });
  const context = canvas.getContext("2d");
  const isSharp = SHARP.includes(type);
  // What lets the ground through would be black in JPEG; servers lay images on white, too.
  if (!isSharp) context.fillStyle = "white";
  if (!isSharp) context.fillRect(0, 0, width, height);
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, 0, 0, width, height);
  const written = isSharp ? "image/png" : "image/jpeg";
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, written, JPEG_QUALITY));
  if (!blob) throw new Error("this browser cannot make it smaller");
  return blob;
}

function urlOf(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error("cannot be read"));
    reader.readAsDataURL(blob);
  });
}

/** Return whether a text is the data: URL of an image in a format of pixels. */
export function isImageUrl(text) {
  const head = /^data:(image\/\w+);base64,/.exec(text);
  return Boolean(head) && KNOWN.includes(head[1]) && !/[^\w+/=]/.test(text.slice(head[0].length));
}

/** Return the text that stands for an image which the model does not see. */
export function labelOf({ name }) {
  return name ? `[image ${name}]` : "[image]";
}

/** Return an image of a message as a node, with its room before the browser has read it. */
export function imageNode(image) {
  const label = labelOf(image);
  if (!image.url) return make("p", { className: "state", textContent: `${label} is not kept in this browser.` });
  const scale = Math.min(1, TALLEST_SHOWN / image.height);
  const [width, height] = [image.width, image.height].map((side) => Math.max(1, Math.round(side * scale)));
  return make("img", { src: image.url, alt: image.name || "Image", title: image.name, width, height });
}
