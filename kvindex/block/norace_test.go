//go:build !race

package block_test

const poolForgets = false
