//! Commands that read subvolumes, on paths of a mount. They print what they
//! print of the unmounted volume.

mod support;

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::process::{Command, Stdio};
use support::{BINARY, Bench, Mounted, can_mount, said};

/// A mounted volume with two snapshots that differ, and data that are not on
/// the device yet.
fn fill(bench: &Bench) {
    bench.run(&["subvolume", "create", "mnt/base"]);
    let base = bench.path("mnt/base");
    std::fs::write(base.join("file"), vec![7; 300_000]).expect("a file");
    std::fs::write(base.join("notes"), "one").expect("a file");
    std::fs::create_dir(base.join("old")).expect("a directory");
    bench.run(&["subvolume", "snapshot", "-r", "mnt/base", "mnt/one"]);
    std::fs::rename(base.join("old"), base.join("new")).expect("a name");
    std::fs::write(base.join("notes"), "one and two").expect("a file");
    std::fs::write(base.join("new/more"), vec![9; 200_000]).expect("a file");
    bench.run(&["subvolume", "snapshot", "-r", "mnt/base", "mnt/two"]);
    std::fs::write(base.join("late"), vec![1; 100_000]).expect("a file");
}

/// The words for the mount, and for the volume.
fn both(words: &[&str]) -> [Vec<String>; 2] {
    [("mnt", "mnt"), ("volume:", "volume")].map(|(place, root)| {
        let word = |word: &&str| match *word {
            "@" => root.to_owned(),
            word => word.replacen('@', place, 1),
        };
        words.iter().map(word).collect()
    })
}

const COMMANDS: &[&[&str]] = &[
    &["subvolume", "list", "@"],
    &["subvolume", "list", "--json", "-o", "@"],
    &["subvolume", "show", "@/base"],
    &["subvolume", "show", "--json", "@/two"],
    &["subvolume", "find-new", "@/base", "0"],
    &["subvolume", "find-new", "--json", "@/two", "3"],
    &["subvolume", "du", "@"],
    &["subvolume", "du", "-b", "@/one", "@/two"],
    &["subvolume", "du", "@", "--if-deleted", "one,two"],
    &["subvolume", "diff", "@/one", "@/two"],
    &["subvolume", "diff", "--json", "@/one", "@/base"],
    &["subvolume", "history", "@/base/notes"],
    &["subvolume", "history", "--json", "@/two/new/more"],
];

#[test]
fn mounted_and_unmounted_volumes_say_the_same() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    let mounted = bench.mount("rw");
    fill(&bench);
    let run = |words: &[String]| bench.run(&words.iter().map(String::as_str).collect::<Vec<_>>());
    let answers: Vec<String> = COMMANDS.iter().map(|words| run(&both(words)[0])).collect();
    assert!(answers[4].contains("late"), "{}", answers[4]);
    let wrong = bench.try_run(&["subvolume", "show", "mnt/base/new"]);
    assert!(!wrong.status.success());
    assert!(said(&wrong).contains("no subvolume"), "{}", said(&wrong));
    bench.run(&["umount", "mnt"]);
    drop(mounted);
    for (words, answer) in COMMANDS.iter().zip(answers) {
        assert_eq!(run(&both(words)[1]), answer, "{words:?}");
    }
}

#[test]
fn snapshots_are_sent_from_a_mount_and_received_in_one() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    let mounted = bench.mount("rw");
    fill(&bench);
    std::fs::create_dir(bench.path("mnt/copies")).expect("a directory");
    // Into the volume from which it comes: neither waits for the other.
    let pipe = |send: &[&str]| {
        let mut sender = Command::new(BINARY)
            .current_dir(bench.path(""))
            .args(send)
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let received = Command::new(BINARY)
            .current_dir(bench.path(""))
            .args(["receive", "-q", "mnt/copies"])
            .stdin(sender.stdout.take().expect("piped"))
            .output()
            .expect("it runs");
        assert!(received.status.success(), "{}", said(&received));
        assert!(sender.wait().expect("its status").success());
    };
    pipe(&["send", "mnt/one"]);
    pipe(&["send", "--compressed-data", "-p", "mnt/one", "mnt/two"]);
    bench.run(&["send", "-f", "mounted.stream", "-p", "mnt/one", "mnt/two"]);
    // Onto the mount itself.
    bench.run(&["send", "-f", "mnt/stream", "-p", "mnt/one", "mnt/two"]);
    let stream = std::fs::read(bench.path("mnt/stream")).expect("a stream");
    let listed = bench.run(&["subvolume", "list", "-R", "mnt"]);
    assert_eq!(listed.matches("received_uuid -").count(), 3, "{listed}");
    // The writable one is refused, and so is what is no subvolume.
    for wrong in ["mnt/base", "mnt/copies", "mnt/absent"] {
        let refused = bench.try_run(&["send", "-f", "wrong.stream", wrong]);
        assert!(!refused.status.success(), "{wrong}");
        assert!(said(&refused).contains(wrong.rsplit('/').next().expect("a name")));
    }
    // A reader that goes away ends the command, and nothing else is harmed.
    let mut sender = Command::new(BINARY)
        .current_dir(bench.path(""))
        .args(["send", "mnt/two"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut first = [0; 1000];
    let mut out = sender.stdout.take().expect("piped");
    out.read_exact(&mut first).expect("a beginning");
    drop(out);
    sender.wait().expect("its status");
    bench.run(&["subvolume", "show", "mnt/two"]);
    bench.run(&["umount", "mnt"]);
    drop(mounted);
    bench.run(&["send", "-f", "plain.stream", "-p", "/one", "volume:/two"]);
    let plain = std::fs::read(bench.path("plain.stream")).expect("a stream");
    assert!(plain == stream);
    assert!(plain == std::fs::read(bench.path("mounted.stream")).expect("a stream"));
    bench.check();
    for name in ["one/notes", "two/notes", "two/new/more"] {
        let content = bench.run(&["cat", &format!("volume:/{name}")]);
        let copy = bench.run(&["cat", &format!("volume:/copies/{name}")]);
        assert!(copy == content, "{name}");
    }
}

#[test]
fn the_kernel_sends_what_it_has_mounted() {
    let bench = Bench::new();
    let made = bench.with_kernel(|mount| {
        let text = |name: &str| mount.join(name).to_str().expect("text").to_owned();
        let btrfs = |words: &[&str]| {
            let output = Command::new("btrfs").args(words).output().expect("it runs");
            assert!(output.status.success(), "{words:?}: {}", said(&output));
        };
        btrfs(&["subvolume", "create", &text("base")]);
        std::fs::write(mount.join("base/file"), vec![7; 300_000]).expect("a file");
        btrfs(&["subvolume", "snapshot", "-r", &text("base"), &text("one")]);
        std::fs::write(mount.join("base/more"), "more").expect("a file");
        btrfs(&["subvolume", "snapshot", "-r", &text("base"), &text("two")]);
        bench.run(&["send", "-f", "one.stream", &text("one")]);
        bench.run(&["send", "-f", "two.stream", "-p", &text("one"), &text("two")]);
        bench.run(&["send", "-f", "c.stream", "-c", &text("one"), &text("two")]);
        let told = bench.try_run(&["subvolume", "history", &text("base/file")]);
        assert!(!told.status.success());
        let told = said(&told);
        assert!(told.contains("command btrfs subvolume find-new"), "{told}");
    });
    if !made {
        return;
    }
    let dump = |stream| bench.run(&["receive", "--dump", "-f", stream]);
    assert!(dump("two.stream").starts_with("snapshot"));
    assert_eq!(dump("two.stream"), dump("c.stream"));
    bench.run(&["mkfs", "-q", "-b", "512m", "copy"]);
    bench.run(&["receive", "-q", "-f", "one.stream", "copy:/"]);
    bench.run(&["receive", "-q", "-f", "two.stream", "copy:/"]);
    assert_eq!(bench.run(&["cat", "copy:/two/more"]), "more");
}

#[test]
fn who_may_not_ask_is_told_so_every_time() {
    if !can_mount() {
        return;
    }
    if !support::is_root() {
        println!("skipped: asking as another user needs root");
        assert!(std::env::var_os("CI").is_none(), "in CI nothing is skipped");
        return;
    }
    let bench = Bench::new();
    let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(bench.path(""), everybody).expect("permissions");
    // The program may lie where they cannot reach it.
    let program = bench.path("program");
    std::fs::copy(BINARY, &program).expect("the program");
    let public = bench.path("public");
    std::fs::create_dir(&public).expect("a directory");
    std::os::unix::fs::chown(&public, Some(65534), Some(65534)).expect("an owner");
    let mounted = bench.mount("rw,allow_other");
    fill(&bench);
    let ask = |words: &[&str]| {
        let output = Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(&program)
            .args(words)
            .current_dir(&public)
            .output()
            .expect("setpriv runs");
        assert_eq!(
            output.status.code(),
            Some(1),
            "{words:?}: {}",
            said(&output)
        );
        let text = said(&output);
        assert!(
            text.contains("only root and the user who mounted"),
            "{text}"
        );
        assert_eq!(output.stdout, b"");
    };
    // Long enough for the refusal to arrive before all of it is sent.
    let long = format!("../mnt/{}two", "./".repeat(900));
    for _ in 0..20 {
        ask(&["subvolume", "list", "../mnt"]);
        ask(&["send", "-f", "stream", "../mnt/two"]);
        ask(&[
            "send",
            "-f",
            "stream",
            "-c",
            &long,
            "-p",
            &long,
            "../mnt/two",
        ]);
    }
    assert_eq!(std::fs::read_dir(&public).expect("a directory").count(), 0);
    // They do not keep permitted callers from asking.
    bench.run(&["subvolume", "list", "mnt"]);
    drop(mounted);
}

/// Connects to a stopped server as a root without capabilities, ends, and has
/// its number taken over by a root with all of them, before the server looks.
/// Arguments: the mountpoint, the server's number. Prints the answer.
const IMPERSONATE: &str = r#"
import os, signal, subprocess, sys
point, server = sys.argv[1], int(sys.argv[2])
name = os.getxattr(point, "butterfs.service")
script = """
import os, socket, sys
one = socket.socket(socket.AF_UNIX)
one.connect(b"\\0" + bytes.fromhex(sys.argv[1]))
if os.fork():
    os._exit(0)
sys.stdin.readline()
try:
    one.sendall(b"\\x02\\0\\0\\0{}")
except BrokenPipeError:
    pass # It was refused before it asked.
one.settimeout(20)
sys.stdout.buffer.write(one.recv(4096))
"""
bare = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all", "--no-new-privs"]
os.kill(server, signal.SIGSTOP)
try:
    for _ in range(50):
        asks = subprocess.Popen(bare + ["python3", "-c", script, name.hex()],
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert asks.wait() == 0
        with open("/proc/sys/kernel/ns_last_pid", "w") as last:
            last.write(str(asks.pid - 1))
        other = subprocess.Popen(["sleep", "100"])
        if other.pid == asks.pid:
            break
        other.kill()
        other.wait()
    assert other.pid == asks.pid, "the number went to somebody else each time"
finally:
    os.kill(server, signal.SIGCONT)
asks.stdin.write(b"\n")
asks.stdin.close()
sys.stdout.buffer.write(asks.stdout.read())
other.kill()
"#;

#[test]
fn a_process_that_got_the_number_of_a_caller_lends_it_no_rights() {
    if !can_mount() || !support::is_root() {
        println!("skipped: numbers of processes are set by root");
        return;
    }
    let bench = Bench::new();
    let server = support::Foreground::start(&bench, "rw");
    let output = Command::new("python3")
        .args(["-c", IMPERSONATE])
        .arg(bench.path("mnt"))
        .arg(server.id().to_string())
        .output()
        .expect("python3 runs");
    assert!(output.status.success(), "{}", said(&output));
    let text = said(&output);
    assert!(
        text.contains("only root and the user who mounted"),
        "{text}"
    );
}

/// Whoever mounts a block device looks for servers that still have it. A server
/// that does not answer holds nobody up.
#[test]
fn a_stopped_server_holds_up_no_other_mount() {
    if !can_mount() || !support::is_root() {
        println!("skipped: block devices are mounted by root");
        return;
    }
    let bench = Bench::new();
    let server = support::Foreground::start(&bench, "rw");
    let file = std::fs::File::create(bench.path("mnt/open")).expect("a file");
    std::io::Write::write_all(&mut &file, &[7; 10_000]).expect("written");
    let image = std::fs::File::create(bench.path("other.img")).expect("a file");
    image.set_len(256 << 20).expect("a size");
    bench.run(&["mkfs", "-q", "other.img"]);
    let device = support::Loop::new(&bench.path("other.img"));
    std::fs::create_dir(bench.path("other")).expect("a directory");
    let signal = |name: &str| {
        let sent = Command::new("kill")
            .args([name, &server.id().to_string()])
            .status();
        assert!(sent.expect("kill runs").success());
    };
    signal("-STOP");
    let mounted = Command::new("timeout")
        .args(["20", BINARY, "mount", device.name()])
        .arg(bench.path("other"))
        .output();
    signal("-CONT");
    let mounted = mounted.expect("it runs");
    assert!(mounted.status.success(), "{}", said(&mounted));
    bench.run(&["umount", "other"]);
}

#[test]
fn an_answer_without_an_end_is_a_failure() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    let server = support::Foreground::start(&bench, "rw");
    bench.run(&["subvolume", "create", "mnt/base"]);
    let content: Vec<u8> = (0..60_000_000_u32).map(|at| (at >> 7) as u8).collect();
    std::fs::write(bench.path("mnt/base/file"), content).expect("a file");
    bench.run(&["subvolume", "snapshot", "-r", "mnt/base", "mnt/one"]);
    let mut sender = Command::new(BINARY)
        .current_dir(bench.path(""))
        .args(["send", "mnt/one"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut first = [0; 1000];
    let mut out = sender.stdout.take().expect("piped");
    out.read_exact(&mut first).expect("a beginning");
    server.kill();
    let mut rest = Vec::new();
    out.read_to_end(&mut rest).expect("what came before");
    let ended = sender.wait_with_output().expect("its status");
    assert_eq!(ended.status.code(), Some(1));
    assert!(said(&ended).contains("did not finish"), "{}", said(&ended));
}

/// A directory and names that are not UTF-8.
#[test]
fn names_need_not_be_utf8() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    let odd = |name: &[u8]| OsString::from_vec(name.to_vec());
    let run = |words: &[&OsStr]| {
        let mut command = Command::new(BINARY);
        let output = command.current_dir(bench.path("")).args(words).output();
        let output = output.expect("the binary runs");
        assert!(output.status.success(), "{words:?}: {}", said(&output));
        output.stdout
    };
    let (image, point) = (odd(b"im\xffage"), odd(b"mp\xff"));
    std::fs::rename(bench.path("volume"), bench.path("").join(&image)).expect("a name");
    let at = bench.path("").join(&point);
    std::fs::create_dir(&at).expect("a mountpoint");
    let word = OsStr::new;
    run(&[word("mount"), &image, &point]);
    let mounted = Mounted(at.clone());
    let subvolume = odd(b"mp\xff/one\xfe");
    let snapshot = odd(b"mp\xff/two\xfd");
    let has = |output: &[u8], part: &[u8]| output.windows(part.len()).any(|at| at == part);
    let made = run(&[word("subvolume"), word("create"), &subvolume]);
    assert!(has(&made, b"'mp\xff/one\xfe'"));
    std::fs::write(at.join(odd(b"one\xfe/file\xfc")), [1; 9000]).expect("a file");
    let words = [word("subvolume"), word("snapshot"), &subvolume, &snapshot];
    assert!(has(&run(&words), b"'mp\xff/one\xfe' in 'mp\xff/two\xfd'"));
    let words = "subvolume list,subvolume list --tree,subvolume show,subvolume du,info,\
        filesystem du,filesystem usage --explain,inspect list-chunks,inspect rootid,\
        balance status,scrub start";
    for words in words.split(',') {
        let mut words: Vec<&OsStr> = words.split(' ').map(OsStr::new).collect();
        let is_show = words.contains(&word("show"));
        words.push(if is_show { &subvolume } else { &point });
        let output = run(&words);
        let names = [word("list"), word("show"), word("du")];
        if names.iter().any(|name| words.contains(name)) {
            assert!(has(&output, b"one\xfe"), "{words:?}");
            assert!(!has(&output, "\u{fffd}".as_bytes()), "{words:?}");
        }
        if words.contains(&word("list")) || is_show {
            assert!(has(&output, b"two\xfd"), "{words:?}");
        }
    }
    let words = [word("subvolume"), word("diff"), &subvolume, &snapshot];
    run(&words);
    let found = run(&[word("subvolume"), word("find-new"), &subvolume, word("0")]);
    assert!(has(&found, b" file\xfc\n"));
    let deleted = run(&[word("subvolume"), word("delete"), &snapshot]);
    assert!(has(&deleted, b"/mp\xff/two\xfd'"));
    run(&[word("umount"), &point]);
    drop(mounted);
    let listed = run(&[word("subvolume"), word("list"), &image]);
    assert!(has(&listed, b"path one\xfe\n"));
    let json = run(&[word("subvolume"), word("list"), word("--json"), &image]);
    assert!(has(&json, "\"path\": \"one\u{fffd}\"".as_bytes()));
}
