/** How an attachment is shown: browsers draw and play some types; all others are files to save. */

export type MediaKind = "image" | "audio" | "video" | "file";

const IMAGES = new Set(["image/png", "image/jpeg", "image/webp", "image/gif", "image/avif"]);

/** Return how an attachment of this type is shown. The server sends other images, such as SVG, only
 * as files, because they may run scripts. */
export function shownAs(mimeType: string): MediaKind {
  if (IMAGES.has(mimeType)) return "image";
  const kind = mimeType.split("/", 1)[0];
  return kind === "audio" || kind === "video" ? kind : "file";
}
