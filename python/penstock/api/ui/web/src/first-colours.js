// Sets the chosen colours before the first paint. It runs before all modules; state/theme.svelte.ts
// writes the choice and follows its changes.
try {
  const theme = JSON.parse(localStorage.getItem("penstock.theme") ?? "null");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // Without storage the page has the colours of the system.
}
