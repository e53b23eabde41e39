// Before anything is drawn: the colours that were chosen here before. Without a choice they are the system's.
try {
  const chosen = localStorage.getItem("slipway-theme");
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
} catch {
  // A browser that keeps nothing shows the colours of the system.
}
