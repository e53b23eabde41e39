// The libraries, under one roof: every other module takes `html` and the hooks from here.
import { h, render } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { batch, computed, effect, signal, useComputed, useSignal } from "@preact/signals";
import htm from "htm";

/** A template of elements; what is put into it is text, never markup. */
export const html = htm.bind(h);

export { batch, computed, effect, render, signal, useComputed, useEffect, useLayoutEffect, useMemo, useRef, useSignal };
