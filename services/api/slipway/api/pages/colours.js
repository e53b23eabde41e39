// Colours of the style sheet for what paints by itself, and knows no variables of it.
import { useEffect, useSignal } from "./runtime.js";

/**
 * The colour that elements of these classes, or with this token, have inside of a box now.
 * @param {Element} box
 * @param {{token?: string, className?: string, property?: "color" | "backgroundColor"}} what `token` as --soft
 * @returns {string}
 */
export function colourOf(box, { token = "", className = "", property = "color" }) {
  const probe = document.createElement("i");
  probe.className = className;
  if (token) probe.style[property] = `var(${token})`;
  box.append(probe);
  const colour = getComputedStyle(probe)[property];
  probe.remove();
  return colour;
}

/**
 * A number that changes when the theme does: by the system, or because another one was chosen.
 * @returns {number}
 */
export function useTheme() {
  const theme = useSignal(0);
  useEffect(() => {
    const change = () => (theme.value += 1);
    const system = matchMedia("(prefers-color-scheme: dark)");
    const chosen = new MutationObserver(change);
    system.addEventListener("change", change);
    chosen.observe(document.documentElement, { attributeFilter: ["data-theme"] });
    return () => {
      system.removeEventListener("change", change);
      chosen.disconnect();
    };
  }, []);
  return theme.value;
}
