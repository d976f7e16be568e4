// Package block is the identity of KV-cache blocks.
package block
