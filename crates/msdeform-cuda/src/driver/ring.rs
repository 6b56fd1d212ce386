//! The last entries of a log that is written on every launch and read when the GPU has faulted.
//!
//! A writer never waits: it takes the next slot, and where another one is still writing there (it was
//! interrupted for a whole turn of the ring) it leaves its entry out. A reader takes an entry only if it
//! did not change under its eyes. Each slot is a sequence lock; `loom` goes through its interleavings
//! (`cargo xtask loom`).

#[cfg(all(test, loom))]
use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(all(test, loom)))]
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// `SLOTS` entries of `WORDS` words. Tickets count entries from 1.
#[derive(Debug)]
pub(super) struct Ring<const SLOTS: usize, const WORDS: usize> {
    last: AtomicU64,
    slots: [Slot<WORDS>; SLOTS],
}

#[derive(Debug)]
struct Slot<const WORDS: usize> {
    /// 0: empty. Twice a ticket: its entry. One more: its entry is being written.
    state: AtomicU64,
    words: [AtomicU64; WORDS],
}

impl<const SLOTS: usize, const WORDS: usize> Ring<SLOTS, WORDS> {
    pub(super) fn new() -> Self {
        let zero = |_| AtomicU64::new(0);
        let slot = |_| Slot { state: AtomicU64::new(0), words: std::array::from_fn(zero) };
        Self { last: AtomicU64::new(0), slots: std::array::from_fn(slot) }
    }

    /// The ticket of the newest entry.
    pub(super) fn last(&self) -> u64 {
        self.last.load(Ordering::Relaxed)
    }

    /// Adds an entry without waiting for other writers. Returns its ticket.
    pub(super) fn push(&self, words: [u64; WORDS]) -> u64 {
        let ticket = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let slot = &self.slots[ticket as usize % SLOTS];
        let seen = slot.state.load(Ordering::Relaxed);
        // Being written, or newer: the other writer or this one was interrupted for a whole turn of the ring.
        if seen % 2 == 1 || seen > 2 * ticket {
            return ticket;
        }
        // Acquire: our words come after those of the entry we write over.
        let (mine, order) = (2 * ticket + 1, Ordering::Acquire);
        if slot.state.compare_exchange(seen, mine, order, Ordering::Relaxed).is_err() {
            return ticket;
        }
        // A reader that sees one of the words sees the odd state as well.
        fence(Ordering::Release);
        for (place, word) in slot.words.iter().zip(words) {
            place.store(word, Ordering::Relaxed);
        }
        slot.state.store(2 * ticket, Ordering::Release);
        ticket
    }

    /// Takes an entry out again, if it is still there.
    pub(super) fn remove(&self, ticket: u64) {
        let slot = &self.slots[ticket as usize % SLOTS];
        let (entry, order) = (2 * ticket, Ordering::Relaxed);
        // The exchange fails if another writer has replaced the entry; that entry stays.
        let _ = slot.state.compare_exchange(entry, 0, order, order);
    }

    /// The entries that are whole, newest first, with their tickets.
    pub(super) fn entries(&self) -> Vec<(u64, [u64; WORDS])> {
        let mut entries: Vec<_> = self.slots.iter().filter_map(Slot::read).collect();
        entries.sort_unstable_by_key(|&(ticket, _)| std::cmp::Reverse(ticket));
        entries
    }
}

impl<const WORDS: usize> Slot<WORDS> {
    fn read(&self) -> Option<(u64, [u64; WORDS])> {
        let state = self.state.load(Ordering::Acquire);
        if state == 0 || state % 2 == 1 {
            return None;
        }
        let words = std::array::from_fn(|index| self.words[index].load(Ordering::Relaxed));
        // Pairs with the fence of a writer whose words were read: its odd state is then seen below.
        fence(Ordering::Acquire);
        (self.state.load(Ordering::Relaxed) == state).then_some((state / 2, words))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_last_entries_come_back_newest_first() {
        let ring = Ring::<4, 2>::new();
        assert!(ring.entries().is_empty());
        for number in 1..=6 {
            assert_eq!(ring.push([number, 10 * number]), number);
        }
        let expected = [(6, [6, 60]), (5, [5, 50]), (4, [4, 40]), (3, [3, 30])];
        assert_eq!(ring.entries(), expected);
        assert_eq!(ring.last(), 6);
    }

    #[test]
    fn an_entry_can_be_taken_out_and_one_that_is_gone_cannot() {
        let ring = Ring::<2, 1>::new();
        for number in 1..=3 {
            ring.push([number]);
        }
        ring.remove(1);
        assert_eq!(ring.entries(), [(3, [3]), (2, [2])]);
        ring.remove(3);
        assert_eq!(ring.entries(), [(2, [2])]);
        ring.push([4]);
        assert_eq!(ring.entries(), [(4, [4])]);
    }

    /// Under Miri and the thread sanitizer as well.
    #[test]
    fn entries_written_by_many_threads_are_whole() {
        let rounds = if cfg!(miri) { 20 } else { 5000 };
        let ring = Ring::<4, 3>::new();
        std::thread::scope(|scope| {
            for writer in 0..7_u64 {
                let ring = &ring;
                scope.spawn(move || {
                    for round in 0..rounds {
                        let number = writer * rounds + round;
                        let ticket = ring.push([number, !number, number ^ 0xabcd]);
                        if number % 5 == 0 {
                            ring.remove(ticket);
                        }
                    }
                });
            }
            scope.spawn(|| {
                for _ in 0..rounds {
                    for (ticket, [first, second, third]) in ring.entries() {
                        assert!(ticket >= 1);
                        assert_eq!((second, third), (!first, first ^ 0xabcd));
                    }
                }
            });
        });
        assert_eq!(ring.last(), 7 * rounds);
    }
}

#[cfg(all(test, loom))]
mod interleavings {
    use loom::sync::Arc;

    use super::*;

    fn entry(number: u64) -> [u64; 2] {
        [number, !number]
    }

    /// One slot, so that every entry is in the way of the others.
    #[test]
    fn a_reader_never_sees_halves_of_two_entries() {
        loom::model(|| {
            let ring = Arc::new(Ring::<1, 2>::new());
            let writers = [1, 2].map(|number| {
                let ring = Arc::clone(&ring);
                loom::thread::spawn(move || ring.push(entry(number)))
            });
            for (_, [first, second]) in ring.entries() {
                assert_eq!(second, !first);
            }
            let tickets = writers.map(|writer| writer.join().unwrap());
            assert_eq!(tickets[0] + tickets[1], 3);
            // One of them stays, whole.
            let left = ring.entries();
            assert_eq!(left.len(), 1);
            assert_eq!(left[0].1[1], !left[0].1[0]);
        });
    }

    #[test]
    fn a_reader_notices_that_an_entry_is_written_over() {
        loom::model(|| {
            let ring = Arc::new(Ring::<1, 2>::new());
            ring.push(entry(1));
            let other = Arc::clone(&ring);
            let writer = loom::thread::spawn(move || other.push(entry(2)));
            for (ticket, words) in ring.entries() {
                assert_eq!(words, entry(ticket));
            }
            writer.join().unwrap();
            assert_eq!(ring.entries(), [(2, entry(2))]);
        });
    }

    /// What is taken out is one's own entry or nothing.
    #[test]
    fn a_removal_leaves_the_entry_of_another_alone() {
        loom::model(|| {
            let ring = Arc::new(Ring::<1, 2>::new());
            let other = Arc::clone(&ring);
            let writer = loom::thread::spawn(move || other.push(entry(7)));
            let ticket = ring.push(entry(8));
            ring.remove(ticket);
            let theirs = writer.join().unwrap();
            for (found, words) in ring.entries() {
                assert_eq!((found, words), (theirs, entry(7)));
            }
        });
    }
}
