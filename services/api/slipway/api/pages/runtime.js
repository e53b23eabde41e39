// The only module that imports the UI libraries: all other modules import `html` and the hooks from here.
import { h, render } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { batch, computed, effect, signal, useComputed, useSignal } from "@preact/signals";
import htm from "htm";

/** A template of elements; inserted values are text, never markup. */
export const html = htm.bind(h);

export { batch, computed, effect, render, signal, useComputed, useEffect, useLayoutEffect, useMemo, useRef, useSignal };
