//! The methods that a source defines and calls.

use std::collections::BTreeSet;

/// The name of a type, and the name of a method.
type Method = (String, String);

/// Methods of a source, by the names of their types.
#[derive(Debug, Default)]
pub struct Methods {
    /// Those that its `impl` blocks define.
    pub defined: BTreeSet<Method>,
    /// Those that it calls on `self`, or by the name of their type.
    pub called: BTreeSet<Method>,
}

/// The place behind generic parameters that begin at `at`, if some do.
fn behind_generics(words: &[String], mut at: usize) -> usize {
    let mut depth = 0_usize;
    while let Some(word) = words.get(at) {
        match &word[..] {
            "<" => depth += 1,
            // Not the end of `->`.
            ">" if words[at - 1] != "-" => depth = depth.saturating_sub(1),
            _ if depth == 0 => break,
            _ => {}
        }
        at += 1;
    }
    at
}

/// The type of the `impl` block whose header begins at `at`, and the place of
/// its first brace.
fn header(words: &[String], at: usize) -> Option<(String, usize)> {
    let mut at = behind_generics(words, at);
    let mut name = None;
    loop {
        let word = words.get(at)?;
        match &word[..] {
            "{" => return name.map(|name| (name, at)),
            "<" => {
                at = behind_generics(words, at);
                continue;
            }
            "where" => {
                while words.get(at).is_some_and(|word| word != "{") {
                    at += 1;
                }
                continue;
            }
            "for" | "::" | "&" | "dyn" | "mut" => {}
            _ => name = Some(word.clone()),
        }
        at += 1;
    }
}

impl Methods {
    /// Those of a source of these words.
    pub fn of(words: &[String]) -> Self {
        let mut methods = Self::default();
        let mut depth = 0_usize;
        // The type of the block, and the depth of its content.
        let mut block: Option<(String, usize)> = None;
        let mut at = 0;
        while let Some(word) = words.get(at) {
            let next = |by: usize| words.get(at + by).map_or("", |word| &word[..]);
            let before = at.checked_sub(1).map_or(";", |at| &words[at][..]);
            match &word[..] {
                "{" => depth += 1,
                "}" => {
                    depth = depth.saturating_sub(1);
                    if block.as_ref().is_some_and(|(_, inside)| depth < *inside) {
                        block = None;
                    }
                }
                "impl" if block.is_none() && matches!(before, "}" | ";" | "]" | "unsafe") => {
                    if let Some((name, brace)) = header(words, at + 1) {
                        block = Some((name, depth + 1));
                        at = brace;
                        continue;
                    }
                }
                "fn" => {
                    if let Some((name, inside)) = &block
                        && depth == *inside
                    {
                        methods.defined.insert((name.clone(), next(1).to_owned()));
                    }
                }
                "self" if next(1) == "." && matches!(next(3), "(" | "::") => {
                    if let Some((name, _)) = &block {
                        methods.called.insert((name.clone(), next(2).to_owned()));
                    }
                }
                "::" => {
                    let name = match (before, &block) {
                        ("Self", Some((name, _))) => name.clone(),
                        _ => before.to_owned(),
                    };
                    methods.called.insert((name, next(1).to_owned()));
                }
                _ => {}
            }
            at += 1;
        }
        methods
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::words;

    fn names(methods: &BTreeSet<Method>) -> Vec<String> {
        let names = methods.iter();
        names
            .map(|(name, method)| format!("{name}.{method}"))
            .collect()
    }

    #[test]
    fn blocks_have_types_and_calls_have_methods() {
        let text = "impl<T: Fn() -> U> a::Some<T> where T: X { fn f(&self) { self.g(); self.h } }
            impl Source for &Other { fn i(&self) { Self::j(); Some::k(self.field.l()) } }
            fn m(a: impl Fn()) { self.n() }";
        let methods = Methods::of(&words(text));
        assert_eq!(names(&methods.defined), ["Other.i", "Some.f"]);
        assert_eq!(names(&methods.called), ["Other.j", "Some.g", "Some.k"]);
    }
}
