//! Mutations of a corpus, without knowledge of what they reach.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// The most mutations of one input.
const MAX_MUTATIONS: usize = 8;
/// The most bytes that one mutation inserts, deletes or repeats.
const MAX_PIECE: usize = 32;
/// The most times that a piece is repeated at once.
const MAX_REPEATS: usize = 64;

/// Makes inputs out of a corpus and a dictionary. Equal seeds make equal inputs.
pub(crate) struct Mutator<'a> {
    corpus: &'a [Vec<u8>],
    tokens: &'a [Vec<u8>],
    max_bytes: usize,
    random: StdRng,
}

impl<'a> Mutator<'a> {
    pub(crate) fn new(corpus: &'a [Vec<u8>], tokens: &'a [Vec<u8>], max_bytes: usize, seed: u64) -> Self {
        Self { corpus, tokens, max_bytes, random: StdRng::seed_from_u64(seed) }
    }

    /// Makes the next input: one of the corpus with one or more mutations.
    pub(crate) fn make(&mut self) -> Vec<u8> {
        let mut input = self.one_of(self.corpus).cloned().unwrap_or_default();
        for _ in 0..self.random.random_range(1..=MAX_MUTATIONS) {
            self.mutate(&mut input);
        }
        input.truncate(self.max_bytes);
        input
    }

    fn one_of<'b>(&mut self, all: &'b [Vec<u8>]) -> Option<&'b Vec<u8>> {
        (!all.is_empty()).then(|| &all[self.random.random_range(0..all.len())])
    }

    /// A range of the input that begins anywhere, of up to [`MAX_PIECE`] bytes.
    fn piece(&mut self, input: &[u8]) -> std::ops::Range<usize> {
        let start = self.random.random_range(0..=input.len());
        let length = self.random.random_range(0..=MAX_PIECE.min(input.len() - start));
        start..start + length
    }

    fn mutate(&mut self, input: &mut Vec<u8>) {
        let piece = self.piece(input);
        match self.random.random_range(0..9) {
            0 => {
                if let Some(byte) = input.get_mut(piece.start) {
                    *byte ^= 1 << self.random.random_range(0..8);
                }
            }
            1 => {
                if let Some(byte) = input.get_mut(piece.start) {
                    *byte = self.random.random();
                }
            }
            2 => input.insert(piece.start, self.random.random()),
            3 => drop(input.drain(piece)),
            4 => {
                let repeated = input[piece.clone()].repeat(self.random.random_range(1..=MAX_REPEATS));
                drop(input.splice(piece.start..piece.start, repeated));
            }
            5 => {
                let other = self.one_of(self.corpus).cloned().unwrap_or_default();
                let of_other = self.piece(&other);
                drop(input.splice(piece, other[of_other].iter().copied()));
            }
            6 => {
                let other = self.one_of(self.corpus).cloned().unwrap_or_default();
                let start = self.random.random_range(0..=other.len());
                input.truncate(piece.start);
                input.extend_from_slice(&other[start..]);
            }
            7 => {
                let token = self.one_of(self.tokens).cloned().unwrap_or_default();
                drop(input.splice(piece.start..piece.start, token));
            }
            _ => {
                let token = self.one_of(self.tokens).cloned().unwrap_or_default();
                drop(input.splice(piece, token));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_differ_and_none_is_too_long() {
        let (corpus, tokens) = (vec![b"abc".to_vec(), vec![b'x'; 100]], vec![b"token".to_vec()]);
        let mut mutator = Mutator::new(&corpus, &tokens, 64, 7);
        let made: std::collections::HashSet<Vec<u8>> = (0..1_000).map(|_| mutator.make()).collect();
        assert!(made.len() > 500 && made.iter().all(|input| input.len() <= 64), "{}", made.len());
    }

    #[test]
    fn an_empty_corpus_and_an_empty_dictionary_make_inputs_too() {
        let mut mutator = Mutator::new(&[], &[], 64, 7);
        assert!((0..1_000).any(|_| !mutator.make().is_empty()));
    }
}
