// Package discovery tells which workers exist.
package discovery
