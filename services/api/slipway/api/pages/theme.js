// Runs before anything is drawn: sets the theme that the user chose. Without a choice, the system's theme is used.
try {
  const chosen = localStorage.getItem("slipway-theme");
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
} catch {
  // A browser without storage shows the system's theme.
}
