// A button that sends a request to the API. It asks for confirmation if needed, and shows why a request was refused.
import { Confirm } from "./components.js";
import { sentence } from "./format.js";
import { html, useSignal } from "./runtime.js";

/**
 * @param {{label: string, send: () => Promise<void>, title?: string, verb?: string, no?: string, isDanger?: boolean,
 *   isGood?: boolean, style?: string, onOpen?: () => void, children?: any}} props with a `title` the button opens a dialog;
 *   `children` describe the effect, or are the fields of a small form, which can be sent while `isGood`
 */
export function Action({ label, send, title = "", verb = label, no = "Cancel", isDanger = false, isGood = true, style = "", onOpen, children }) {
  const isAsked = useSignal(false);
  const isBusy = useSignal(false);
  const error = useSignal(null);
  const act = async () => {
    isBusy.value = true;
    error.value = null;
    try {
      await send();
      isAsked.value = false;
    } catch (refusal) {
      error.value = refusal;
    }
    isBusy.value = false;
  };
  const open = () => {
    error.value = null;
    onOpen?.();
    if (title) isAsked.value = true;
    else act();
  };
  return html`<button type="button" class=${style || (isDanger ? "danger" : "")} disabled=${isBusy.value} onClick=${open}>${label}</button>
    ${error.value && !isAsked.value ? html`<span class="bad" role="alert">${sentence(error.value.message)}</span>` : null}
    ${isAsked.value ? html`<${Confirm} title=${title} verb=${verb} no=${no} isDanger=${isDanger} isBusy=${isBusy.value || !isGood} error=${error.value}
      onYes=${act} onNo=${() => (isAsked.value = false)}>${children}<//>` : null}`;
}
