// The columns of the table of processes: the text and the sort value of each.
import { DASH, bytes, duration, joules, percent, watts } from "./format.js";
import { place, placeOrder } from "./names.js";

const name = (field) => ({ name: true, text: (row) => row[field] || "", sort: (row) => row[field] || null });
const number = (field, write) => ({ number: true, text: (row) => write(row[field]), sort: (row) => row[field] });

// `width` is a CSS grid track. An `optional` column is shown only when a row has a value for it.
export const COLUMNS = [
  { id: "gpu", label: "GPU", width: "5.2rem", text: (row) => place(row), sort: (row) => placeOrder(place(row)) },
  { id: "namespace", label: "Namespace", width: "minmax(6rem, 1fr)", optional: true, ...name("namespace") },
  { id: "pod", label: "Pod", width: "minmax(7rem, 2fr)", optional: true, ...name("pod") },
  { id: "container", label: "Container", width: "minmax(6rem, 1fr)", optional: true, alone: true, ...name("container") },
  { id: "job", label: "Job", width: "minmax(5rem, 1fr)", optional: true, ...name("job") },
  { id: "user", label: "User", width: "minmax(5rem, 1fr)", optional: true, ...name("user") },
  { id: "command", label: "Command", width: "minmax(6rem, 1.4fr)", ...name("command") },
  { id: "pid", label: "PID", width: "5.5rem", number: true, text: (row) => (row.pid === null ? "" : String(row.pid)), sort: (row) => row.pid },
  { id: "memory", label: "Memory", width: "6rem", ...number("memory_bytes", bytes) },
  { id: "sm", label: "SM", width: "4.6rem", ...number("sm_ratio", percent) },
  { id: "watts", label: "Power", width: "5rem", ...number("power_watts", watts) },
  { id: "joules", label: "Energy", width: "6rem", ...number("joules", joules) },
  { id: "age", label: "Age", width: "6.6rem", number: true, text: ageText, sort: (row) => (row.start_unix === null ? null : -row.start_unix) },
];

/** The minimum width of these columns as a CSS length, including gaps and padding. */
export function minWidth(columns) {
  const tracks = columns.map((column) => parseFloat(column.width.replace("minmax(", "")));
  return `${(tracks.reduce((sum, track) => sum + track, 0) + 0.75 * (columns.length + 1)).toFixed(2)}rem`;
}

function ageText(row, now) {
  if (row.start_unix === null) return DASH;
  return (row.start_exact ? "" : "\u2265 ") + duration(now - row.start_unix);
}
