//! Files out of a volume that does not open, by the commands of
//! docs/recovery.md as they are written there.

mod support;

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output};
use support::{BINARY, said};

const FILES: usize = 30;

fn text(file: usize) -> String {
    format!("this is file {file}\n").repeat(1 + file * 50)
}

/// A folder with a volume in `disk.img`, from which one file was deleted.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a directory");
    let source = folder.path().join("source");
    std::fs::create_dir_all(source.join("notes")).expect("a directory");
    for file in 0..FILES {
        let path = source.join(format!("notes/{file}.txt"));
        std::fs::write(path, text(file)).expect("a file");
    }
    let deleted = folder.path().join("deleted.txt");
    std::fs::write(deleted, text(100)).expect("a file");
    for line in [
        "butterfs mkfs -q -b 256m disk.img",
        "butterfs copy deleted.txt disk.img:/",
        "butterfs copy -r source disk.img:/",
        "butterfs rm disk.img:/deleted.txt",
    ] {
        let output = shell(folder.path(), line);
        assert!(output.status.success(), "{line}: {}", said(&output));
    }
    folder
}

/// Runs a line as it is typed.
fn shell(folder: &Path, line: &str) -> Output {
    let line = match line.strip_prefix("butterfs ") {
        Some(rest) => format!("'{BINARY}' {rest}"),
        None => line.to_owned(),
    };
    let mut command = Command::new("sh");
    command.current_dir(folder).args(["-c", &line]);
    command.output().expect("a shell")
}

fn zero(folder: &Path, offset: u64) {
    let image = std::fs::File::options()
        .write(true)
        .open(folder.join("disk.img"));
    let image = image.expect("the image");
    image.write_all_at(&[0; 4096], offset).expect("a write");
}

fn zero_superblocks(folder: &Path) {
    zero(folder, 64 << 10);
    zero(folder, 64 << 20);
}

fn assert_saved(folder: &Path) {
    for file in 0..FILES {
        let path = folder.join(format!("saved/source/notes/{file}.txt"));
        let found = std::fs::read_to_string(&path);
        assert_eq!(found.expect("a file"), text(file), "{}", path.display());
    }
}

#[test]
fn the_commands_of_the_page_bring_the_files() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/recovery.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let lines = page.lines().filter_map(|line| line.strip_prefix("    "));
    let lines: Vec<&str> = lines.filter(|line| line.starts_with("butterfs")).collect();
    assert!(lines.len() >= 7, "{lines:?}");
    let folder = folder();
    zero_superblocks(folder.path());
    let before = std::fs::read(folder.path().join("disk.img")).expect("the image");
    for line in lines {
        let output = shell(folder.path(), line);
        assert!(output.status.success(), "{line}: {}", said(&output));
    }
    assert_saved(folder.path());
    let back = std::fs::read_to_string(folder.path().join("saved/deleted.txt"));
    assert_eq!(back.expect("the deleted file"), text(100));
    let after = std::fs::read(folder.path().join("disk.img")).expect("the image");
    assert!(before == after, "the volume was changed");
}

#[test]
fn the_error_of_a_volume_that_does_not_open_names_the_guide() {
    let folder = folder();
    zero_superblocks(folder.path());
    for line in [
        "butterfs ls disk.img",
        "butterfs mount --foreground disk.img mnt",
    ] {
        std::fs::create_dir_all(folder.path().join("mnt")).expect("a directory");
        let output = shell(folder.path(), line);
        assert!(!output.status.success(), "{line}");
        let said = said(&output);
        assert!(
            said.contains("begin with `butterfs rescue guide ") && said.contains("disk.img`"),
            "{line}: {said}"
        );
    }
    let output = shell(folder.path(), "butterfs rescue guide disk.img");
    let said = said(&output);
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains("Step 1:") && !said.contains("Step 6:"),
        "{said}"
    );
    // What it prints can be typed.
    let lines: Vec<String> = said
        .lines()
        .filter_map(|line| line.strip_prefix("    "))
        .filter(|line| line.starts_with("butterfs"))
        .map(|line| line.replace("DIRECTORY", "saved"))
        .collect();
    for line in &lines {
        let output = shell(folder.path(), line);
        assert!(
            output.status.success(),
            "{line}: {}",
            support::said(&output)
        );
    }
    assert_saved(folder.path());
}

#[test]
fn a_survey_says_what_to_type_next() {
    let folder = folder();
    let next = |folder: &Path| {
        let output = shell(folder, "butterfs rescue survey --json disk.img");
        assert!(output.status.success(), "{}", said(&output));
        let facts: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert!(
            facts["candidates"][0]["files"].as_u64() >= Some(FILES as u64),
            "{facts}"
        );
        facts["next"].as_str().expect("a command").to_owned()
    };
    assert_eq!(
        next(folder.path()),
        "butterfs mount -o ro disk.img DIRECTORY"
    );
    zero_superblocks(folder.path());
    let command = next(folder.path()).replace("DIRECTORY", "saved");
    assert!(command.starts_with("butterfs restore --all"), "{command}");
    let output = shell(folder.path(), &command);
    assert!(output.status.success(), "{}", said(&output));
    assert_saved(folder.path());
}

#[test]
fn restore_takes_the_options_of_the_btrfs_tools() {
    let folder = folder();
    let run = |line: &str| {
        let output = shell(folder.path(), line);
        assert!(output.status.success(), "{line}: {}", said(&output));
        said(&output)
    };
    let roots = run("butterfs restore -l disk.img");
    assert!(roots.contains("(superblock)"), "{roots}");
    let listed = run("butterfs restore -D -v -i disk.img out");
    assert!(listed.contains("source/notes/7.txt"), "{listed}");
    assert!(!folder.path().join("out").exists());
    run("butterfs restore -v -i -c --path-regex '/NOTES/7[.]TXT$' disk.img out");
    assert!(folder.path().join("out/source/notes/7.txt").exists());
    assert!(!folder.path().join("out/source/notes/8.txt").exists());
    run("butterfs restore -sxmS -o disk.img out");
    assert!(folder.path().join("out/source/notes/8.txt").exists());
    run("butterfs restore -a --tar all.tar disk.img");
    let listed = run("tar -tf all.tar");
    assert!(listed.contains("source/notes/8.txt"), "{listed}");
    run("mkdir untarred && tar -C untarred -xf all.tar && diff -r source untarred/source");
    run("butterfs restore --tar - disk.img | tar -tf - source/notes/3.txt");
}

/// A directory is deleted with what is in it, and chosen at the prompt.
#[test]
fn deleted_files_are_looked_through_and_chosen() {
    let folder = folder();
    for line in [
        "butterfs cp disk.img:/source/notes/3.txt disk.img:/source/top.txt",
        "butterfs rm -r disk.img:/source",
    ] {
        let output = shell(folder.path(), line);
        assert!(output.status.success(), "{line}: {}", said(&output));
    }
    let before = std::fs::read(folder.path().join("disk.img")).expect("the image");
    std::fs::write(
        folder.path().join("typed"),
        "ls\ncd source\nls\nfind 1?.txt\ncd nowhere\nget notes/2*.txt\nget ../source/top.txt\nquit\n",
    )
    .expect("a script");
    let output = shell(
        folder.path(),
        "butterfs undelete -i --to back disk.img < typed",
    );
    let text_of_all = said(&output);
    assert!(output.status.success(), "{text_of_all}");
    for said in [
        "source/\n",
        "notes/\n",
        "notes/15.txt  ",
        "no such directory",
    ] {
        assert!(text_of_all.contains(said), "{said}: {text_of_all}");
    }
    let back = folder.path().join("back");
    for (name, file) in [
        ("source/top.txt", 3),
        ("source/notes/2.txt", 2),
        ("source/notes/29.txt", 29),
    ] {
        let found = std::fs::read_to_string(back.join(name));
        assert_eq!(found.expect(name), text(file), "{name}");
    }
    let notes = std::fs::read_dir(back.join("source/notes")).expect("notes");
    assert_eq!(notes.count(), 11);
    assert!(!back.join("deleted.txt").exists());

    let line = "butterfs undelete --name notes --to whole disk.img";
    let output = shell(folder.path(), line);
    assert!(output.status.success(), "{}", said(&output));
    assert!(
        said(&output).contains("30 files and 1 directories are in whole"),
        "{}",
        said(&output)
    );
    let whole = std::fs::read_dir(folder.path().join("whole/source/notes")).expect("notes");
    assert_eq!(whole.count(), FILES);
    let after = std::fs::read(folder.path().join("disk.img")).expect("the image");
    assert!(before == after, "the volume was changed");
}
