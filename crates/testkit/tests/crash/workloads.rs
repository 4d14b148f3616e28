//! Written workloads: what programs do around fsync.

/// Name and operations. Each begins on an empty volume.
pub const WORKLOADS: &[(&str, &str)] = &[
    (
        "emptied, then without checksums",
        "create a; write a 0 20000; sync; truncate a 0; nocow a; write a 0 9000; fsync a",
    ),
    (
        "emptied, then without checksums and data",
        "create a; write a 0 20000; sync; truncate a 0; nocow a; fsync a",
    ),
    (
        "without checksums, emptied, then with them",
        "create a; nocow a; write a 0 20000; sync; truncate a 0; cow a; write a 0 9000; fsync a",
    ),
    ("create, fsync", "create a; fsync a"),
    ("write, fsync", "create a; write a 0 5000; fsync a"),
    (
        "small file, fsync",
        "create a; write a 0 100; fsync a; append a 100; fsync a",
    ),
    (
        "small grows",
        "create a; write a 0 100; sync; append a 9000; fsync a; append a 10; fsync a",
    ),
    (
        "write, no fsync",
        "create a; write a 0 5000; sync; write a 0 5000; create b; fsync b",
    ),
    (
        "several files at once",
        "create a; write a 0 5000; create b; write b 0 100; create c; write c 0 20000; sync; write a 0 5000; append b 5000; fsync c; sync",
    ),
    (
        "several files, one of them synced",
        "create a; write a 0 5000; create b; write b 0 100; create c; write c 0 4096; sync; unlink a; create d; write d 0 4096; create e; write e 0 30000; fsync d; sync; unlink d; fsync e",
    ),
    (
        "append thrice",
        "create a; sync; append a 4096; fsync a; append a 4096; fsync a; append a 4096; fsync a",
    ),
    (
        "append unaligned",
        "create a; sync; append a 1000; fsync a; append a 3000; fsync a; append a 777; fsync a",
    ),
    (
        "overwrite",
        "create a; write a 0 20000; sync; write a 4096 4096; fsync a; write a 0 4096; fsync a",
    ),
    (
        "overwrite the same place",
        "create a; write a 0 16384; sync; write a 0 4096; fsync a; write a 0 4096; fsync a; write a 0 4096; fsync a",
    ),
    (
        "overwrite parts of logged",
        "create a; sync; write a 0 65536; fsync a; write a 8192 4096; fsync a; write a 0 65536; fsync a",
    ),
    (
        "overwrite wide over narrow",
        "create a; sync; write a 16384 4096; fsync a; write a 0 65536; fsync a",
    ),
    (
        "sparse",
        "create a; write a 100000 5000; fsync a; write a 50000 5000; fsync a",
    ),
    (
        "truncate down",
        "create a; write a 0 50000; sync; truncate a 10000; fsync a",
    ),
    (
        "truncate to nothing",
        "create a; write a 0 50000; sync; truncate a 0; fsync a; append a 5000; fsync a",
    ),
    (
        "truncate down and up",
        "create a; write a 0 50000; sync; truncate a 4096; truncate a 50000; fsync a",
    ),
    (
        "truncate logged",
        "create a; sync; write a 0 50000; fsync a; truncate a 4096; fsync a; truncate a 50000; fsync a",
    ),
    (
        "truncate logged unaligned",
        "create a; sync; write a 0 50000; fsync a; truncate a 5000; fsync a; write a 40000 5000; fsync a",
    ),
    (
        "truncate up",
        "create a; write a 0 5000; sync; truncate a 100000; fsync a",
    ),
    (
        "truncate without fsync",
        "create a; write a 0 50000; fsync a; truncate a 100; create b; fsync b",
    ),
    (
        "punch",
        "create a; write a 0 50000; sync; punch a 8192 16384; fsync a",
    ),
    (
        "punch logged",
        "create a; sync; write a 0 50000; fsync a; punch a 4096 20000; fsync a; write a 8192 4096; fsync a",
    ),
    (
        "punch unaligned",
        "create a; write a 0 50000; sync; punch a 5000 20000; fsync a",
    ),
    (
        "punch the end",
        "create a; write a 0 50000; sync; punch a 40000 100000; fsync a",
    ),
    (
        "zero range",
        "create a; write a 0 50000; sync; zero a 4096 20000; fsync a; write a 8192 100; fsync a",
    ),
    (
        "keep beyond the end",
        "create a; write a 0 5000; keep a 0 200000; fsync a; append a 5000; fsync a",
    ),
    (
        "keep beyond, committed",
        "create a; write a 0 5000; sync; keep a 8192 200000; fsync a; truncate a 3000; fsync a",
    ),
    (
        "keep, then write into",
        "create a; keep a 0 100000; sync; write a 0 4096; fsync a; write a 50000 4096; fsync a; write a 0 4096; fsync a",
    ),
    (
        "allocate",
        "create a; allocate a 0 100000; fsync a; write a 40000 10000; fsync a",
    ),
    (
        "allocate, shrink",
        "create a; allocate a 0 100000; sync; truncate a 20000; fsync a; keep a 0 90000; fsync a",
    ),
    (
        "clone",
        "create a; write a 0 40000; fsync a; create b; clone a b; fsync b; write a 0 4096; fsync a",
    ),
    (
        "clone, unlink source",
        "create a; write a 0 40000; create b; clone a b; fsync b; unlink a; fsync b",
    ),
    (
        "clone, overwrite both",
        "create a; create b; sync; write a 0 40000; fsync a; clone a b; fsync b; write a 0 40000; fsync a; write b 0 40000; create c; write c 0 40000; fsync c",
    ),
    (
        "attribute",
        "create a; attribute a; fsync a; attribute a; fsync a",
    ),
    (
        "attribute gone",
        "create a; attribute a; sync; noattribute a; fsync a",
    ),
    (
        "attribute without fsync",
        "create a; attribute a; fsync a; noattribute a; create b; fsync b",
    ),
    ("link", "create a; write a 0 5000; sync; link a b; fsync a"),
    (
        "link, fsync by the new name",
        "create a; write a 0 5000; fsync a; link a b; fsync b; link b c; fsync c",
    ),
    (
        "link in another directory",
        "mkdir d; create a; sync; link a d/b; fsync a",
    ),
    (
        "unlink one of two",
        "create a; link a b; sync; unlink a; fsync b",
    ),
    (
        "unlink and make again",
        "create a; write a 0 5000; sync; unlink a; create a; write a 0 3000; fsync a",
    ),
    (
        "unlink logged and make again",
        "create x; sync; create a; write a 0 5000; fsync a; unlink a; create a; write a 0 3000; fsync a",
    ),
    (
        "rename",
        "create a; write a 0 5000; sync; rename a b; fsync b",
    ),
    (
        "rename, fsync before",
        "create x; sync; create a; write a 0 5000; fsync a; rename a b; create c; fsync c",
    ),
    (
        "rename logged, new one in its place",
        "create x; sync; create a; write a 0 5000; fsync a; rename a b; create a; write a 0 100; fsync a",
    ),
    (
        "rename over a persisted file",
        "create a; write a 0 5000; sync; create t; write t 0 6000; fsync t; rename t a; fsyncdir",
    ),
    (
        "rename over again and again, with the directory",
        "mkdir d; create d/a; write d/a 0 5000; sync; create d/t; write d/t 0 6000; fsync d/t; rename d/t d/a; fsyncdir d; create d/t; write d/t 0 7000; fsync d/t; rename d/t d/a; fsyncdir d; unlink d/a; fsyncdir d",
    ),
    (
        "new files, fsync of the directory",
        "create x; sync; create a; write a 0 5000; create b; fsyncdir; append x 10; fsync x; unlink a; fsyncdir; create c; write c 0 5000; fsync c",
    ),
    (
        "removed files, fsync of the directory",
        "create a; write a 0 5000; create b; create c; sync; unlink a; fsyncdir; write b 0 100; fsync b; unlink c; create d; fsyncdir; unlink b; fsyncdir",
    ),
    (
        "both names removed, one given again",
        "create a; link a b; sync; unlink a; unlink b; create a; write a 0 3000; fsync a; fsyncdir",
    ),
    (
        "two names removed one after the other, the last one given again",
        "create a; link a b; create t; sync; unlink b; create c; fsync c; rename t a; create u; rename u a; fsync a",
    ),
    (
        "names in two directories removed",
        "mkdir d; create d/a; link d/a b; sync; unlink b; unlink d/a; fsyncdir d",
    ),
    (
        "one of two names removed",
        "create a; write a 0 5000; link a b; sync; unlink a; fsyncdir; create a; fsync a",
    ),
    (
        "moved away, fsync of the old directory",
        "mkdir d; create d/a; write d/a 0 5000; sync; rename d/a a; create d/a; fsyncdir d",
    ),
    (
        "moved in, fsync of the new directory",
        "mkdir d; create a; create d/b; sync; rename a d/a; unlink d/b; fsyncdir d",
    ),
    (
        "logs are rotated, fsync of the directory",
        "create x; create l; write l 0 5000; sync; append l 100; fsync l; rename l m; create l; write l 0 300; fsyncdir; append l 50; fsync l; rename m n; rename l m; create l; fsyncdir",
    ),
    (
        "two files change places",
        "mkdir d; create d/a; write d/a 0 5000; create d/b; write d/b 0 300; sync; exchange d/a d/b; fsyncdir d; exchange d/a d/b; fsyncdir d",
    ),
    (
        "a second name comes and goes",
        "mkdir d; create d/a; write d/a 0 5000; sync; link d/a d/b; fsyncdir d; unlink d/a; fsyncdir d; append d/b 20; fsync d/b; rename d/b d/c; create d/a; fsyncdir d",
    ),
    (
        "renamed, then moved away",
        "mkdir d; create d/a; write d/a 0 5000; sync; rename d/a d/b; fsyncdir d; rename d/b a; create d/a; fsyncdir d; fsync a",
    ),
    (
        "directories of the same number in two subvolumes",
        "subvolume SA; create SA/a; write SA/a 0 5000; create SA/b; write SA/b 0 3000; create x; sync; append SA/a 10; fsync SA/a; rename SA/b SA/c; rename SA/a SA/b; create y; fsyncdir",
    ),
    (
        "a replaced file stays gone when the new one moves on",
        "mkdir d; create d/a; write d/a 0 5000; sync; create d/b; write d/b 0 300; rename d/b d/a; fsync d/a; create d/c; rename d/a x; fsync d/c; append x 50; fsync x",
    ),
    (
        "a replaced file stays gone when the new one is deleted",
        "mkdir d; create d/a; write d/a 0 5000; sync; create d/b; write d/b 0 300; rename d/b d/a; fsync d/a; create d/c; unlink d/a; fsync d/c; create d/a; fsync d/c",
    ),
    (
        "a replaced file stays gone when its name passes on",
        "mkdir d; create d/a; write d/a 0 5000; sync; create d/b; write d/b 0 300; rename d/b d/a; fsync d/a; create d/c; fsync d/c; rename d/a d/e; rename d/c d/a; create d/f; fsync d/f; rename d/f d/a; create d/g; fsync d/g",
    ),
    (
        "a logged directory is removed",
        "mkdir d; create d/x; sync; create d/a; fsyncdir d; unlink d/a; unlink d/x; rmdir d; create y; fsync y; fsyncdir",
    ),
    (
        "a logged directory is renamed",
        "mkdir d; create d/x; sync; create d/a; unlink d/x; fsyncdir d; rename d e; create e/b; fsync e/b; create y; fsync y",
    ),
    (
        "a directory in the place of a file",
        "create a; write a 0 5000; sync; unlink a; mkdir a; create a/b; fsyncdir; fsync a/b",
    ),
    (
        "a file in the place of a directory",
        "mkdir a; sync; rmdir a; create a; write a 0 5000; fsync a; fsyncdir",
    ),
    (
        "an open file in the place of another, both removed",
        "create a; write a 0 5000; sync; create b; write b 0 4096; fsync b; rename b a; fsyncdir; unlink a; create c; fsync c; fsyncdir",
    ),
    (
        "rename over, no directory fsync",
        "create a; write a 0 5000; sync; create t; write t 0 6000; fsync t; rename t a; create z; fsync z",
    ),
    (
        "rename over a logged file, fsync of another",
        "create c; sync; create x; write x 0 5000; fsync x; create t; write t 0 6000; rename t x; append c 10; fsync c",
    ),
    (
        "rename of a committed file over a logged one",
        "create c; create t; write t 0 6000; sync; create x; write x 0 5000; fsync x; rename t x; append c 10; fsync c",
    ),
    (
        "rename over twice",
        "create a; sync; create t; write t 0 6000; fsync t; rename t a; create t; write t 0 7000; fsync t; rename t a; fsync a",
    ),
    (
        "exchange",
        "create a; write a 0 5000; create b; write b 0 6000; sync; exchange a b; fsync a",
    ),
    (
        "rename a directory with fsynced children",
        "mkdir d; create d/a; write d/a 0 5000; fsync d/a; rename d e; create e/b; fsync e/b",
    ),
    (
        "rename a directory, fsync child",
        "mkdir d; create d/a; sync; write d/a 0 5000; rename d e; fsync e/a",
    ),
    (
        "rename between directories",
        "mkdir d; mkdir e; create d/a; write d/a 0 5000; sync; rename d/a e/a; fsync e/a",
    ),
    (
        "fsync in a new directory",
        "mkdir d; create d/a; write d/a 0 5000; fsync d/a; create d/b; fsync d/b",
    ),
    (
        "fsync of a directory",
        "mkdir d; create d/a; create d/b; fsyncdir d; unlink d/a; fsyncdir d",
    ),
    (
        "fsync of the root",
        "create a; create b; fsyncdir; unlink a; rename b c; fsyncdir",
    ),
    (
        "rmdir and make again",
        "mkdir d; create d/a; sync; unlink d/a; rmdir d; create d; fsync d",
    ),
    (
        "deep directories",
        "mkdir a; mkdir a/b; mkdir a/b/c; create a/b/c/f; write a/b/c/f 0 100; fsync a/b/c/f",
    ),
    (
        "unnamed gets a name",
        "tmpfile t; write t 0 5000; name t a; fsync a",
    ),
    (
        "unnamed, synced first",
        "tmpfile t; write t 0 5000; sync; name t a; fsync a; append a 5000; fsync a",
    ),
    (
        "unnamed stays so",
        "create a; sync; tmpfile t; write t 0 50000; fsync t; create b; fsync b",
    ),
    (
        "two files in turn",
        "create a; create b; sync; append a 5000; fsync a; append b 5000; fsync b; append a 5000; fsync a; append b 5000; fsync b",
    ),
    (
        "freed data are not reused early",
        "create x; sync; create a; write a 0 100000; fsync a; truncate a 0; create b; write b 0 100000; fsync b; create c; write c 0 100000; fsync c",
    ),
    (
        "deleted data are not reused early",
        "create a; write a 0 100000; sync; unlink a; create b; write b 0 100000; fsync b; create c; write c 0 100000; fsync c",
    ),
    (
        "log across commits",
        "create a; sync; append a 5000; fsync a; sync; append a 5000; fsync a; sync; append a 5000; fsync a",
    ),
    (
        "fsync after a commit alone",
        "create a; write a 0 5000; sync; fsync a; create b; sync; fsync a",
    ),
    (
        "many files",
        "create x; sync; create a; create b; create c; create d; create e; write a 0 9000; write c 0 100; fsync a; fsync b; fsync c; fsync d; fsync e",
    ),
    (
        "full volume",
        "create a; write a 0 50000; fsync a; create b; fill b; append a 10; fsync a",
    ),
    (
        "full volume, emptied",
        "create a; write a 0 50000; create b; fill b; unlink b; sync; append a 50000; fsync a",
    ),
    (
        "fsyncs in two subvolumes",
        "subvolume SA; subvolume SB; create SA/a; create SB/b; sync; append SA/a 5000; append SB/b 9000; fsync SA/a; fsync SB/b; append SA/a 100; fsync SA/a; append SB/b 100; fsync SB/b",
    ),
    (
        "names in two subvolumes",
        "subvolume SA; create x; sync; create SA/a; fsync SA/a; create y; fsync y; rename SA/a SA/b; fsync SA/b; unlink x; create z; fsync z",
    ),
    (
        "snapshot after an fsync",
        "subvolume SA; create SA/a; sync; append SA/a 9000; fsync SA/a; snapshot SA SB; append SA/a 5000; fsync SA/a; append SB/a 100; fsync SB/a",
    ),
    (
        "fsync after a snapshot",
        "subvolume SA; create SA/a; create SA/b; write SA/a 0 20000; write SA/b 0 100; snapshot SA SB; write SA/a 4096 4096; fsync SA/a; unlink SB/a; create SB/c; fsync SB/c; truncate SA/a 5000; fsync SA/a",
    ),
    (
        "snapshot of what waits",
        "subvolume SA; create SA/a; write SA/a 0 50000; create SA/b; snapshot SA SB; write SA/a 0 50000; snapshot SA SC; unlink SA/b; sync",
    ),
    (
        "snapshots deleted, step by step",
        "subvolume SA; create SA/a; write SA/a 0 20000; create SA/b; write SA/b 0 100; snapshot SA SB; write SB/b 0 9000; sync; delete SA; clean; sync; clean; create x; fsync x; delete SB; sync; clean; clean; sync",
    ),
    (
        "deleted next to an fsync",
        "subvolume SA; create SA/a; write SA/a 0 20000; create x; snapshot SA SB; append x 5000; delete SA; fsync x; create SB/n; fsync SB/n; clean; append x 5000; fsync x",
    ),
    (
        "mmap, msync",
        "create a; write a 0 20000; sync; store a 100 9000; msync a 0 20000; store a 15000 5000; msync a 0 20000",
    ),
    (
        "mmap, msync of a part",
        "create a; write a 0 30000; sync; store a 0 30000; msync a 8192 4096; writeback a 0 1; writeback a 5 2; msync a 0 30000",
    ),
    (
        "mmap, written back without msync",
        "create a; write a 0 30000; fsync a; store a 3000 20000; writeback a 2 2; create b; fsync b; writeback a 0 9; sync",
    ),
    (
        "mmap, msync of a new file",
        "create a; truncate a 50000; store a 20000 9000; msync a 20000 9000; store a 49000 1000; msync a 40000 10000",
    ),
    (
        "mmap into a hole",
        "create a; write a 0 5000; truncate a 100000; sync; store a 50000 10000; msync a 49152 12000; store a 4000 9000; msync a 0 100000",
    ),
    (
        "mmap into preallocated",
        "create a; allocate a 0 100000; sync; store a 10000 30000; msync a 0 50000; store a 10000 100; msync a 0 50000",
    ),
    (
        "mmap of a clone",
        "create a; write a 0 40000; fsync a; create b; clone a b; fsync b; store b 5000 9000; store a 5000 3000; msync b 0 40000; msync a 0 40000",
    ),
    (
        "mmap, truncate between",
        "create a; write a 0 50000; sync; store a 0 50000; truncate a 10000; msync a 0 10000; truncate a 30000; store a 9000 9000; msync a 0 30000",
    ),
    (
        "mmap, rename, msync",
        "create a; write a 0 20000; sync; store a 0 20000; rename a b; msync b 0 20000; create a; fsync a",
    ),
    (
        "mmap beside writes",
        "create a; write a 0 30000; sync; store a 0 8192; append a 5000; msync a 0 35000; store a 28672 6000; write a 0 4096; msync a 0 35000",
    ),
    (
        "mmap of an inline file",
        "create a; write a 0 100; sync; store a 10 50; msync a 0 100; store a 0 100; writeback a 0 1; fsync a",
    ),
    (
        "keep beyond the end, shrink and keep again",
        "create a; write a 0 5000; sync; keep a 8192 100000; fsync a; truncate a 4000; fsync a; keep a 0 50000; fsync a; append a 9000; fsync a",
    ),
    (
        "keep beyond, then renamed and linked",
        "create a; write a 0 5000; keep a 65536 65536; fsync a; link a b; fsync b; rename a c; fsync c; append c 70000; fsync c",
    ),
    (
        "clone of a part that is then punched",
        "create a; write a 0 40000; create b; sync; clone a b; fsync b; punch a 4096 8192; fsync a; punch b 20000 9000; fsync b; truncate b 100; fsync b",
    ),
    (
        "clone across subvolumes",
        "subvolume SA; subvolume SB; create SA/a; write SA/a 0 40000; create SB/b; sync; clone SA/a SB/b; fsync SB/b; unlink SA/a; write SB/b 0 4096; fsync SB/b; delete SA; clean; fsync SB/b; sync",
    ),
    (
        "dedupe",
        "create a; write a 0 40000; fsync a; create b; same a b; fsync b; dedupe a b; write a 0 4096; fsync a; fsync b; sync; write b 8192 5000; fsync b",
    ),
    (
        "dedupe, then the source goes",
        "subvolume SA; create SA/a; write SA/a 0 40000; create b; same SA/a b; sync; dedupe SA/a b; create x; fsync x; unlink SA/a; fsync b; sync; write b 0 4096; fsync b",
    ),
    (
        "defragment",
        "create a; write a 0 4096; fsync a; append a 4096; fsync a; append a 4096; fsync a; append a 5000; sync; defragment a; create x; fsync x; append a 100; fsync a; sync; write a 0 5000; fsync a",
    ),
    (
        "defragment what is shared",
        "subvolume SA; create SA/a; write SA/a 0 4096; fsync SA/a; append SA/a 4096; fsync SA/a; append SA/a 9000; sync; snapshot SA SB; defragment SA/a; fsync SA/a; write SB/a 0 100; fsync SB/a; sync; delete SB; clean; fsync SA/a; sync",
    ),
    ("a stream is received", "receive 1 8; create x; fsync x"),
    (
        "a stream is received between fsyncs",
        "create x; write x 0 5000; fsync x; receive 2 8; append x 5000; fsync x; sync",
    ),
    (
        "a stream is cut",
        "create x; fsync x; receive 2 5; append x 100; fsync x; delete SR; clean; receive 2 8",
    ),
    (
        "a received subvolume is deleted",
        "receive 1 8; delete SR; clean; create x; fsync x; clean; sync; clean; clean",
    ),
    (
        "rename of a directory over an empty one",
        "mkdir d; create d/a; mkdir e; sync; write d/a 0 5000; fsync d/a; rename d e; create e/b; fsync e/b",
    ),
    (
        "a deletion at every step",
        "subvolume SA; many SA 200; snapshot SA SB; append SA/m3 100; sync; delete SA; clean; sync; create x; fsync x; clean; append x 5000; fsync x; clean; clean; sync; clean; delete SB; clean; sync; clean; append x 100; fsync x; clean; clean; sync; clean; clean; clean; sync",
    ),
    (
        "quotas",
        "subvolume SA; create SA/a; write SA/a 0 20000; quotas full; write SA/a 4096 9000; sync; create SA/b; write SA/b 0 50000; fsync SA/b; snapshot SA SB; write SA/a 0 9000; fsync SA/a; unlink SB/b; sync; counted; delete SA; clean; sync; clean; counted; append SB/a 5000; fsync SB/a",
    ),
    (
        "simple quotas",
        "subvolume SA; create SA/a; write SA/a 0 20000; quotas simple; write SA/a 4096 9000; sync; create SA/b; write SA/b 0 50000; fsync SA/b; snapshot SA SB; create SB/c; clone SB/b SB/c; unlink SA/b; write SA/a 0 9000; fsync SA/a; sync; delete SA; clean; sync; clean; append SB/a 5000; fsync SB/a; unlink SB/b; unlink SB/c; sync",
    ),
    (
        "quotas switched off and on",
        "subvolume SA; create SA/a; write SA/a 0 20000; quotas full; append SA/a 9000; fsync SA/a; noquotas; append SA/a 100; fsync SA/a; quotas simple; write SA/a 0 9000; fsync SA/a; sync; noquotas; append SA/a 100; sync",
    ),
];
