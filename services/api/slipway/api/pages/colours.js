// Colours of the style sheet for libraries that paint on a canvas and cannot use its variables.
import { useEffect, useSignal } from "./runtime.js";

/**
 * The current colour of an element with these classes, or with this token, inside a box.
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
 * A number that changes with the theme: when the system changes it, or the user chooses another one.
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
