// Package promtext reads samples from the Prometheus text exposition format
// (https://prometheus.io/docs/instrumenting/exposition_formats/) and from
// OpenMetrics text, for a caller that wants a handful of series out of some
// thousand lines.
//
// A [Scanner] finds the name of each sample line; labels and value of a line are
// looked at only when the caller asks. Reading allocates nothing, but for
// values of more than 15 significant digits. Comments, types and exemplars are
// skipped; time stamps are ignored. Lines that do not follow the format are
// counted and skipped, so that one odd series never hides the rest. Names in
// quotes (UTF-8 names) count as malformed.
package promtext
