# On a fresh Debian, `make demo` and `make test` need nothing but make and root
# (or sudo), for the packages.
export PATH := $(HOME)/.cargo/bin:$(PATH)

.PHONY: release dist install uninstall deb static demo test test-long programs tools kill vm-kill fuzz build lint bench soak soak-database crash-sweep devices-sweep convert-sweep races git-history lab-smoke lab-evidence clean

demo:
	@scripts/packages demo
	@scripts/demo

build:
	@scripts/packages build
	cargo build --release --bin butterfs

# What is installed: the release binary, and the library that `butterfs run`
# loads into programs where it cannot watch them, without their line tables, which
# lie beside them.
DIST := $${CARGO_TARGET_DIR:-target}/dist

dist: build
	cargo build --release -p butterfs-preload
	scripts/strip $${CARGO_TARGET_DIR:-target}/release/butterfs $(DIST)/butterfs
	scripts/strip $${CARGO_TARGET_DIR:-target}/release/libbutterfs_preload.so $(DIST)/libbutterfs_preload.so

# `make dist`, and as root `make install`. PREFIX, DESTDIR, SBINDIR and others:
# see scripts/install. BINARY installs another binary.
install:
	@if [ -z "$$BINARY" ] && ! [ -x $(DIST)/butterfs ]; then $(MAKE) dist; fi
	@BINARY=$${BINARY:-$(DIST)/butterfs} scripts/install install

uninstall:
	@scripts/install uninstall

# Debian packages, in target/deb.
deb:
	@scripts/packages build
	@if [ -z "$$BINARY" ]; then $(MAKE) dist; fi
	@BINARY=$${BINARY:-$(DIST)/butterfs} scripts/deb $${CARGO_TARGET_DIR:-target}/deb

# Binaries that need nothing of the system, in target/static.
static:
	@scripts/packages static
	scripts/static $${CARGO_TARGET_DIR:-target}/static

# Everything of a release, and its tag: make release VERSION=0.1.0
release:
	@scripts/packages static
	scripts/release $(VERSION)

# Within 20 minutes on two cores, downloads included. It says every 15 seconds
# what it is at.
test:
	@scripts/packages test
	scripts/test short

# What `make test` leaves out: the longest tests, real programs, 25 kills of the
# server, the lab, fuzzing. About half an hour.
test-long:
	@scripts/packages test-long
	scripts/test long

# pjdfstest, fsx, fio, git and sqlite on a FUSE mount; part of `make test-long`.
programs: build
	@scripts/packages test-long
	scripts/programs

# snapper, btrbk, compsize, duperemove, python-btrfs and others by `butterfs run`,
# beside the kernel's Btrfs; part of `make test-long`.
tools: build
	@scripts/packages test-long
	scripts/tools

# kill -9 of the server under sqlite, git, dbench, PostgreSQL and MariaDB, 100
# times each (about half an hour); `make test-long` does 5.
kill: build
	@scripts/packages test-long
	scripts/kill 100 --evidence docs/evidence/kill.md

# kill -9 of servers that are alone in their mount namespace, in virtual machines
# with Debian's kernels, without KVM (an hour); figures to
# docs/evidence/vm-kill.md.
vm-kill: build
	@scripts/packages vm
	cargo build --release -p butterfs-fuse --example orphan
	scripts/vm-kill 20 --evidence docs/evidence/vm-kill.md

# Every parser, whole images and sequences of operations, ten minutes each.
fuzz:
	@scripts/packages test
	scripts/fuzz 600

lint:
	cargo fmt --check
	cargo fmt --check --manifest-path fuzz/Cargo.toml
	cargo clippy --workspace --all-targets -- -D warnings
	cargo clippy --manifest-path fuzz/Cargo.toml --target-dir $${CARGO_TARGET_DIR:-target}/fuzz -- -D warnings
	cargo run -q -p xtask -- edges
	cargo run -q -p xtask -- circles > /dev/null
	cargo run -q -p xtask -- paths

# Random operations, many seeds (about twenty minutes).
soak:
	@scripts/packages test
	BUTTERFS_SEEDS=0..200 cargo test -p butterfs-testkit --test model -- --nocapture the_library
	BUTTERFS_SEEDS=1..200 cargo test --release -p butterfs-fs --test data -- --nocapture

# Half a million crash states of volumes of several devices; the figures go to
# docs/evidence/devices-crash.md.
devices-sweep:
	@scripts/packages test
	scripts/devices-sweep

# Two million crash states, more than half of them of several threads (about an
# hour on two cores); the figures go to docs/evidence/crash.md.
crash-sweep:
	@scripts/packages test
	scripts/crash-sweep

# Conversions of 200 random ext4 images, a hundred thousand crash states of
# conversions and ways back, thousands of damaged images (ten minutes on two cores,
# half of it the build).
convert-sweep:
	@scripts/packages test
	BUTTERFS_SEEDS=0..200 cargo test --release -p butterfs-convert --test random --test features -- --nocapture
	BUTTERFS_SEEDS=0..13000 cargo test --release -p butterfs-convert --test crash -- --nocapture
	BUTTERFS_SEEDS=0..3000 cargo test --release -p butterfs-convert --test refused -- --nocapture

# The shape of a database on a mount for six hours, beside snapshots and balances;
# figures to docs/evidence/soak-database.md. `scripts/soak-database SECONDS` takes
# another time.
soak-database: build
	@scripts/packages test-long
	scripts/soak-database 21600 --evidence docs/evidence/soak-database.md

# Data races: 16 threads in the engine, and FUSE's, under ThreadSanitizer (ten
# minutes, most of them the build); figures to docs/evidence/races.md.
races:
	@scripts/packages test
	scripts/races

# ButterFS beside kernel Btrfs in one run (25 minutes); figures to docs/evidence,
# and what fell since the last ones is named.
bench:
	@scripts/packages test-long
	scripts/bench

# The lab touches everything once; its report is opened in Chromium. Part of
# `make test-long`.
lab-smoke: build
	@scripts/packages test-long
	scripts/lab-smoke

# The five reports at small scale (100 minutes on a quiet machine); the
# results and reports go to docs/evidence/lab.
lab-evidence: build
	@scripts/packages test-long
	scripts/lab-evidence

clean:
	cargo clean

# The last 200 commits of this project as snapshots, sent from volume to volume.
git-history:
	BUTTERFS_GIT_COMMITS=200 cargo test -p butterfs-cli --test git_history -- --nocapture
