//! Files of a crate that use each other in a circle.
//!
//! A module uses another one if one of its paths (in `use` or elsewhere) leads
//! to something in that module. What a module only re-exports (`pub use`)
//! belongs to the module that defines it. Tests inside files do not count.
//!
//! A second count sees methods as well: a module also uses the module that
//! defines a method which it calls on `self`, or by the name of its type. Types
//! whose methods lie in many files make such circles, and `IN_CIRCLES` says how
//! many files of a crate may be in one.

mod methods;

use crate::source::{files, read, without_tests, words};
use methods::Methods;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Crates without circles.
const FREE: &[&str] = &["cli", "fs", "kernel", "server", "store"];

/// How many files of these crates may use each other in circles when methods
/// count. The numbers only fall: whoever cuts a circle notes it here.
const IN_CIRCLES: &[(&str, usize)] = &[
    ("cli", 12),
    ("fs", 18),
    ("kernel", 0),
    ("server", 8),
    ("store", 46),
];

/// A path of names: the path of a module, or a path that a module mentions.
type Names = Vec<String>;

/// The paths and imports of a file.
#[derive(Default)]
struct Module {
    /// Paths that it mentions.
    paths: Vec<Names>,
    /// Names that it has from elsewhere, and their paths.
    imports: BTreeMap<String, Names>,
    /// Methods that it defines and calls.
    methods: Methods,
}

/// The path of a file's module; the crate's root has none.
fn name_of(source: &Path, file: &Path) -> Names {
    let below = file.strip_prefix(source).unwrap_or(file).with_extension("");
    let names = below.iter().map(|name| name.to_string_lossy().into_owned());
    let mut names: Names = names.collect();
    if names.last().is_some_and(|name| name == "mod") {
        names.pop();
    }
    if let [name] = &names[..]
        && matches!(&name[..], "lib" | "main")
    {
        names.pop();
    }
    names
}

/// Reads the tree of a `use` from `words`, with the path before it. Returns
/// what it names, and under which names.
fn tree(words: &[String], at: &mut usize, before: &Names, found: &mut Vec<(Names, String)>) {
    let mut path = before.clone();
    while let Some(word) = words.get(*at) {
        *at += 1;
        match &word[..] {
            "::" => {}
            "{" => {
                while words
                    .get(*at)
                    .is_some_and(|word| word != "}" && word != ";")
                {
                    tree(words, at, &path, found);
                    if words.get(*at).is_some_and(|word| word == ",") {
                        *at += 1;
                    }
                }
                *at += 1;
                return;
            }
            "as" => {
                let name = words.get(*at).cloned().unwrap_or_default();
                *at += 1;
                found.push((path, name));
                return;
            }
            "}" | "," | ";" => {
                *at -= 1;
                break;
            }
            "self" if !path.is_empty() => {}
            _ => path.push(word.clone()),
        }
    }
    let name = path.last().cloned().unwrap_or_default();
    found.push((path, name));
}

impl Module {
    fn of(text: &str) -> Self {
        let words = words(without_tests(text));
        let mut module = Self {
            methods: Methods::of(&words),
            ..Self::default()
        };
        let mut at = 0;
        while at < words.len() {
            // Not `use<...>`, which lists what a type captures.
            if words[at] == "use" && words.get(at + 1).is_some_and(|word| word != "<") {
                at += 1;
                let mut found = Vec::new();
                tree(&words, &mut at, &Names::new(), &mut found);
                for (path, name) in found {
                    module.imports.insert(name, path.clone());
                    module.paths.push(path);
                }
                continue;
            }
            let mut path = vec![words[at].clone()];
            while words.get(at + 1).is_some_and(|word| word == "::") && at + 2 < words.len() {
                at += 2;
                path.push(words[at].clone());
            }
            if path.len() > 1 {
                module.paths.push(path);
            }
            at += 1;
        }
        module
    }
}

/// The modules of a crate.
struct Modules(BTreeMap<Names, Module>);

impl Modules {
    fn of(source: &Path) -> Result<Self, String> {
        let mut modules = BTreeMap::new();
        for file in files(source) {
            modules.insert(name_of(source, &file), Module::of(&read(&file)?));
        }
        Ok(Self(modules))
    }

    /// The module that contains what `path` means in the module `from`.
    fn resolve(&self, from: &Names, path: &[String], depth: usize) -> Option<Names> {
        let (first, rest) = path.split_first()?;
        let mut at = from.clone();
        let mut rest = rest;
        match &first[..] {
            "crate" => at.clear(),
            "self" => {}
            "super" => {
                at.pop();
                while let [word, behind @ ..] = rest
                    && word == "super"
                {
                    at.pop();
                    rest = behind;
                }
            }
            name => {
                // A child, or something that is named here.
                let mut child = from.clone();
                child.push(name.to_owned());
                if self.0.contains_key(&child) {
                    at = child;
                } else {
                    let import = self.0.get(from)?.imports.get(name)?;
                    if depth == 0 || import[..] == path[..] {
                        return None;
                    }
                    let whole = [import, rest].concat();
                    return self.resolve(from, &whole, depth - 1);
                }
            }
        }
        while let [name, behind @ ..] = rest {
            let mut child = at.clone();
            child.push(name.clone());
            if self.0.contains_key(&child) {
                at = child;
                rest = behind;
                continue;
            }
            // A name that the module re-exports.
            if depth > 0
                && at != *from
                && let Some(import) = self.0.get(&at).and_then(|module| module.imports.get(name))
            {
                let whole = [import, behind].concat();
                return self.resolve(&at, &whole, depth - 1);
            }
            break;
        }
        Some(at)
    }

    /// Which modules each one uses.
    fn uses(&self) -> Uses<'_> {
        let each = self.0.iter().map(|(name, module)| {
            let found = module.paths.iter();
            let found = found.filter_map(|path| self.resolve(name, path, 8));
            (name, found.filter(|other| other != name).collect())
        });
        each.collect()
    }
}

/// Which modules use which others.
type Uses<'m> = BTreeMap<&'m Names, BTreeSet<Names>>;

impl Modules {
    /// The same when a call of a method is a use of the module that defines it.
    fn uses_with_methods(&self) -> Uses<'_> {
        let mut homes: BTreeMap<_, Vec<&Names>> = BTreeMap::new();
        for (name, module) in &self.0 {
            for method in &module.methods.defined {
                homes.entry(method).or_default().push(name);
            }
        }
        let mut uses = self.uses();
        for (name, module) in &self.0 {
            let called = module.methods.called.iter();
            let others = called.filter_map(|method| homes.get(method)).flatten();
            let others = others.filter(|other| **other != name);
            uses.entry(name)
                .or_default()
                .extend(others.copied().cloned());
        }
        uses
    }
}

/// The modules that are in a circle.
fn in_circles<'m>(uses: &'m Uses<'m>) -> Vec<&'m Names> {
    let names = uses.keys().copied();
    names
        .filter(|name| reach(uses, name).contains(name))
        .collect()
}

/// All modules that can be reached.
fn reach<'m>(uses: &'m Uses<'_>, from: &'m Names) -> BTreeSet<&'m Names> {
    let mut seen = BTreeSet::new();
    let mut next = vec![from];
    while let Some(name) = next.pop() {
        for other in uses.get(name).into_iter().flatten() {
            if seen.insert(other) {
                next.push(other);
            }
        }
    }
    seen
}

/// Shows how many files of a crate are in circles when methods count. Fails if
/// there are more than may be.
fn count_with_methods(name: &str, modules: &Modules) -> Result<(), String> {
    let uses = modules.uses_with_methods();
    let members = in_circles(&uses);
    let count = members.len();
    let known = IN_CIRCLES.iter().find(|(other, _)| *other == name);
    let Some(&(_, most)) = known else {
        return Ok(());
    };
    println!("{name}: {count} files are in circles when methods count, {most} may be");
    for member in &members {
        let others = uses[member].iter();
        let others = others.filter(|other| members.contains(other));
        let others: Vec<String> = others.map(|other| other.join("/")).collect();
        println!("  {} uses {}", member.join("/"), others.join(", "));
    }
    match count > most {
        true => Err(format!(
            "{name}: {count} files use each other in circles when methods count, more than {most}"
        )),
        false => Ok(()),
    }
}

/// Shows the circles of a crate; gives their number.
fn show(name: &str, modules: &Modules) -> usize {
    let uses = modules.uses();
    let reached: BTreeMap<&Names, BTreeSet<&Names>> = uses
        .keys()
        .map(|module| (*module, reach(&uses, module)))
        .collect();
    let text = |module: &Names| match &module[..] {
        [] => "(root)".to_owned(),
        names => names.join("/"),
    };
    let mut told = BTreeSet::new();
    let mut circles = 0;
    for (module, behind) in &reached {
        if !behind.contains(module) || told.contains(module) {
            continue;
        }
        let is_in = |other: &Names| behind.contains(other) && reached[other].contains(module);
        println!("{name}:");
        for member in uses.keys().filter(|other| is_in(other)) {
            told.insert(*member);
            let others = uses[*member].iter().filter(|other| is_in(other));
            let others: Vec<String> = others.map(text).collect();
            println!("  {} uses {}", text(member), others.join(", "));
        }
        circles += 1;
    }
    circles
}

/// Shows the circles of these crates, or of all crates. Fails if a crate has
/// circles that should have none.
pub fn check(crates: &[String]) -> Result<(), String> {
    let mut names = crates.to_vec();
    if names.is_empty() {
        let entries = fs::read_dir("crates").map_err(|error| format!("crates: {error}"))?;
        let folders = entries.flatten().map(|entry| entry.file_name());
        names.extend(folders.map(|name| name.to_string_lossy().into_owned()));
        names.sort();
    }
    let mut wrong = Vec::new();
    for name in names {
        let modules = Modules::of(&Path::new("crates").join(&name).join("src"))?;
        if show(&name, &modules) > 0 && FREE.contains(&&name[..]) {
            wrong.push(format!("{name}: files use each other in a circle"));
        }
        wrong.extend(count_with_methods(&name, &modules).err());
    }
    if wrong.is_empty() {
        return Ok(());
    }
    Err(wrong.join("\n"))
}
