# Two commands do everything on a fresh Debian: `make demo` and `make test`.
export PATH := $(HOME)/.cargo/bin:$(PATH)

.PHONY: demo test programs build lint bench soak clean

demo:
	@scripts/packages demo
	@scripts/demo

build:
	@scripts/packages build
	cargo build --release --bin butterfs

test:
	@scripts/packages test
	scripts/test

# pjdfstest, fsx, fio, git and sqlite on a FUSE mount; part of `make test`.
programs: build
	@scripts/packages test
	scripts/programs

lint:
	cargo fmt --check
	cargo clippy --workspace --all-targets -- -D warnings
	cargo run -q -p xtask -- edges

# Random operations on file data, many seeds (about ten minutes).
soak:
	@scripts/packages test
	BUTTERFS_SEEDS=1..200 cargo test --release -p butterfs-fs --test data -- --nocapture

# ButterFS beside kernel Btrfs in one run; figures to docs/evidence/.
bench:
	@scripts/packages test
	scripts/bench

clean:
	cargo clean
