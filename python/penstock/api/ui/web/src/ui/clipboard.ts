/** Put a text on the clipboard. Returns whether the browser allowed it. */
export async function copyText(text: string): Promise<boolean> {
  // Browsers offer the clipboard to pages with TLS and on the same machine only.
  if (window.isSecureContext) {
    return navigator.clipboard.writeText(text).then(
      () => true,
      () => false,
    );
  }
  const area = document.createElement("textarea");
  area.value = text;
  area.setAttribute("aria-hidden", "true");
  area.style.position = "fixed";
  area.style.opacity = "0";
  // A modal dialog makes all elements outside it inert.
  (document.querySelector("dialog[open]") ?? document.body).append(area);
  const before = document.activeElement;
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  if (before instanceof HTMLElement) before.focus();
  return done;
}
