// Package kvindex is a prefix index of KV-cache blocks over many workers.
package kvindex
