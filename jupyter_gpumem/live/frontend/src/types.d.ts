/** What travels between kernel and browser; `live/wire.py` is the other side of it. */

export interface DeviceInfo {
  label: string;
  name: string | null;
  total: number | null;
  /** Whether it is not there any more: a virtual one that was switched off. */
  gone: boolean;
}

export interface Answer {
  id: string;
  name: string;
  text: string;
  failed: boolean;
}

export interface State {
  kind: "state";
  columns: string[];
  devices: DeviceInfo[];
  since: number;
  absent: string | null;
  error: string | null;
  recording: { running: boolean; kept: boolean };
  can_dock: boolean;
  models: { panel: string; dock: string | null };
  answer?: Answer;
}

export interface CellCost {
  peak: number | null;
  over: number | null;
  stays: number | null;
  exact: boolean;
}

/** Why a cell ran out of memory: parts of an `OomExplanation`. */
export interface Reason {
  device: string | null;
  verdict: string;
  sentence: string;
}

export interface Cell {
  number: number;
  start: number;
  end: number | null;
  error?: string | null;
  devices?: Record<string, CellCost>;
  oom?: Reason;
}

export interface Summary {
  returnable: number;
  stranded: number;
  private: number;
  largest_free: number;
  external: number | null;
  segments: number;
  blocks: number;
}

export interface MapHead {
  kind: "map";
  slot: number;
  time: number;
  entries: number;
  streams: number[];
  pools: number[][];
  lines: string[];
  summary: Summary;
}

export type Incoming =
  | State
  | MapHead
  | { kind: "samples"; history?: boolean }
  | { kind: "cells"; cells: Cell[] };

/** One stretch of memory in one state: a block, or several of a segment sent as their sum. */
export interface Entry {
  size: number;
  count: number;
  state: number;
  line: string;
}

export interface Segment {
  address: number;
  size: number;
  stream: number;
  pool: number[];
  small: boolean;
  expandable: boolean;
  entries: Entry[];
}

export interface BlockMap {
  slot: number;
  time: number;
  summary: Summary;
  segments: Segment[];
}
