//! Images of OCI layouts.

use super::{build, built, check, run};
use crate::support::{Bench, said};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Blobs by the digests of their bytes.
fn blob(layout: &Path, bytes: &[u8]) -> String {
    let path = layout.join("blobs/sha256/new");
    fs::write(&path, bytes).expect("a blob");
    let sum = run("sha256sum", &["new"], &layout.join("blobs/sha256"));
    let digest = sum.split(' ').next().expect("a digest").to_owned();
    fs::rename(&path, layout.join("blobs/sha256").join(&digest)).expect("its name");
    format!("\"digest\": \"sha256:{digest}\", \"size\": {}", bytes.len())
}

/// An OCI layout of layers that are directories here.
fn layout(bench: &Bench, name: &str, layers: &[&str]) -> PathBuf {
    let layout = bench.path(name);
    fs::create_dir_all(layout.join("blobs/sha256")).expect("directories");
    fs::write(
        layout.join("oci-layout"),
        "{\"imageLayoutVersion\": \"1.0.0\"}",
    )
    .expect("a file");
    let mut described = Vec::new();
    for (number, layer) in layers.iter().enumerate() {
        let tar = bench.path("layer.tar");
        run(
            "tar",
            &["-cf", "layer.tar", "--sort=name", "-C", layer, "."],
            &bench.path(""),
        );
        let (program, kind) = if number % 2 == 0 {
            ("gzip", "gzip")
        } else {
            ("cat", "")
        };
        let packed = Command::new(program).arg("-c").arg(&tar).output();
        let packed = match program {
            "cat" => fs::read(&tar).expect("the layer"),
            _ => packed.expect("it runs").stdout,
        };
        let media = format!("application/vnd.oci.image.layer.v1.tar+{kind}");
        let blob = blob(&layout, &packed);
        described.push(format!("{{\"mediaType\": \"{media}\", {blob}}}"));
    }
    let manifest = format!(
        "{{\"schemaVersion\": 2, \"layers\": [{}]}}",
        described.join(",")
    );
    let manifest = blob(&layout, manifest.as_bytes());
    let index = format!("{{\"schemaVersion\": 2, \"manifests\": [{{{manifest}}}]}}");
    fs::write(layout.join("index.json"), index).expect("a file");
    layout
}

#[test]
fn layers_of_an_oci_image() {
    let bench = Bench::new();
    let write = |path: &str, content: &str| {
        let path = bench.path(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
        fs::write(path, content).expect("a file");
    };
    let large = "large ".repeat(100_000);
    write("one/usr/lib/a", "one\n");
    write("one/usr/lib/large", &large);
    write("one/etc/gone", "one\n");
    write("one/etc/kept", "one\n");
    write("one/opaque/old", "one\n");
    write("one/opaque/sub/old", "one\n");
    symlink("usr/lib", bench.path("one/lib")).expect("a link");
    write("two/lib/b", "two\n");
    write("two/etc/.wh.gone", "");
    write("two/opaque/.wh..wh..opq", "");
    write("two/opaque/sub/new", "two\n");
    write("three/etc/gone", "three\n");
    write("three/.wh.opaque", "");
    let layout = layout(&bench, "oci", &["one", "two", "three"]);
    built(
        &bench,
        &[
            "-o", "image", "--from", "oci", "--layers", "/layers", "--seed", "x",
        ],
    );
    check(&bench, "image");
    let list = bench.run(&["subvolume", "list", "-r", "image"]);
    assert_eq!(list.lines().count(), 2, "{list}");
    let tree = |path: &str| {
        let text = bench.run(&["find", &format!("image:{path}"), "-type", "f"]);
        let mut lines: Vec<String> = text
            .lines()
            .map(|line| {
                line.trim_start_matches(path)
                    .trim_start_matches('/')
                    .to_owned()
            })
            .collect();
        lines.sort();
        lines
    };
    // A directory of a layer takes the place of a link, here `lib`.
    let first = [
        "etc/gone",
        "etc/kept",
        "opaque/old",
        "opaque/sub/old",
        "usr/lib/a",
        "usr/lib/large",
    ];
    assert_eq!(tree("/layers/1"), first);
    let second = [
        "etc/kept",
        "lib/b",
        "opaque/sub/new",
        "usr/lib/a",
        "usr/lib/large",
    ];
    assert_eq!(tree("/layers/2"), second);
    let top = bench.run(&["find", "image:/", "-type", "f"]);
    assert!(top.contains("/etc/gone\n"), "{top}");
    assert!(!top.contains("\n/opaque"), "{top}");
    assert_eq!(bench.run(&["cat", "image:/etc/gone"]), "three\n");
    assert_eq!(bench.run(&["cat", "image:/layers/1/usr/lib/large"]), large);
    // What the layers have in common is stored once.
    let size = fs::metadata(bench.path("image")).expect("it").len();
    assert!(size < (600 << 10) * 2 + (16 << 20), "{size} bytes");

    let blobs = fs::read_dir(layout.join("blobs/sha256")).expect("blobs");
    let largest = blobs
        .map(|blob| blob.expect("a blob").path())
        .max_by_key(|path| fs::metadata(path).expect("attributes").len());
    let largest = largest.expect("a blob");
    let mut bytes = fs::read(&largest).expect("a layer");
    // Behind the end of the archive, or of what it is compressed from.
    *bytes.last_mut().expect("a byte") ^= 1;
    fs::write(&largest, &bytes).expect("a damaged layer");
    let refused = build(&bench, &["-o", "image2", "--from", "oci"]);
    assert!(!refused.status.success(), "{}", said(&refused));
    assert!(!bench.path("image2").exists());
}

/// A layer that makes a directory of what was a symbolic link removes nothing
/// where the link led.
#[test]
fn whiteouts_of_an_oci_image_and_links() {
    let bench = Bench::new();
    let write = |path: &str| {
        let path = bench.path(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
        fs::write(path, "content\n").expect("a file");
    };
    for name in ["data/kept", "data/sub/kept"] {
        write(&format!("low/{name}"));
    }
    for (link, target) in [("link", "data"), ("deep", "data")] {
        symlink(target, bench.path(&format!("low/{link}"))).expect("a link");
    }
    write("high/link/.wh..wh..opq");
    write("high/link/new");
    write("high/deep/sub/.wh.kept");
    layout(&bench, "oci", &["low", "high"]);
    built(&bench, &["-o", "image", "--from", "oci"]);
    check(&bench, "image");
    let files = bench.run(&["find", "image:/", "-type", "f"]);
    let mut files: Vec<&str> = files.lines().collect();
    files.sort_unstable();
    assert_eq!(files, ["/data/kept", "/data/sub/kept", "/link/new"]);
}
