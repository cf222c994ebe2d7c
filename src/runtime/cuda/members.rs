//! Executables by case, within a budget of device memory: the least recently used goes first.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use hyenac_kernels::{Mode, Plan};

use super::arena::SharedArena;
use super::cache::Cache;
use super::device::CudaDevice;
use super::error::{CudaError, Result};
use super::executable::{BindOptions, CudaExecutable, bytes_needed};
use super::memory::DeviceBuffer;
use super::weights::{DeviceWeights, upload_weights};

/// What an executable is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Case {
    /// Number of sequences.
    pub batch: usize,
    /// Length of each.
    pub seq_len: usize,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x {}", self.batch, self.seq_len)
    }
}

/// Something that takes up a budget.
pub trait Member {
    /// Bytes it takes now.
    fn bytes(&self) -> u64;
}

impl Member for CudaExecutable {
    fn bytes(&self) -> u64 {
        self.device_bytes()
    }
}

/// Members by case within a budget of bytes.
pub struct ExecutableCache<M> {
    budget: u64,
    /// The least recently used first.
    members: Vec<(Case, M)>,
}

impl<M: Member> ExecutableCache<M> {
    /// An empty cache with this budget in bytes.
    pub fn new(budget: u64) -> ExecutableCache<M> {
        ExecutableCache { budget, members: Vec::new() }
    }

    /// Bytes that its members take now.
    pub fn bytes(&self) -> u64 {
        self.members.iter().map(|(_, member)| member.bytes()).fold(0, u64::saturating_add)
    }

    /// The cases of its members, the least recently used first.
    pub fn cases(&self) -> impl Iterator<Item = Case> {
        self.members.iter().map(|(case, _)| *case)
    }

    /// The member for a case, which becomes the most recently used.
    pub fn get(&mut self, case: Case) -> Option<&mut M> {
        let position = self.members.iter().position(|(known, _)| *known == case)?;
        // Oldest first, so the member found goes to the end.
        self.members[position..].rotate_left(1);
        self.members.last_mut().map(|(_, member)| member)
    }

    /// The member for a case, built when there is none. `needed` is what it will take; others are evicted before it
    /// is built, until it fits, and more of them if the device then runs out of memory all the same.
    ///
    /// # Errors
    /// [`CudaError::OverBudget`] when it alone exceeds the budget, or what `build` returns.
    pub fn get_or_build(&mut self, case: Case, needed: u64, mut build: impl FnMut() -> Result<M>) -> Result<&mut M> {
        if self.get(case).is_none() {
            if needed > self.budget {
                return Err(CudaError::OverBudget { key: case.to_string(), needed, budget: self.budget });
            }
            while !self.members.is_empty() && self.bytes().saturating_add(needed) > self.budget {
                self.evict_oldest();
            }
            let member = loop {
                match build() {
                    Err(error) if error.is_out_of_memory() && !self.members.is_empty() => self.evict_oldest(),
                    outcome => break outcome?,
                }
            };
            self.members.push((case, member));
        }
        // Members grow when they are used; the one asked for, which is the last, stays.
        while self.members.len() > 1 && self.bytes() > self.budget {
            self.evict_oldest();
        }
        let last = self.members.len() - 1;
        Ok(&mut self.members[last].1)
    }

    fn evict_oldest(&mut self) {
        let (case, member) = self.members.remove(0);
        tracing::debug!("the executable for {case} is evicted, {} bytes", member.bytes());
    }
}

/// Executables of one block on one device, which share weights and an arena.
pub struct CudaMembers {
    // Declared, and so dropped, before the memory that they share.
    executables: ExecutableCache<CudaExecutable>,
    device: CudaDevice,
    arena: Arc<SharedArena>,
    cache: Cache,
    mode: Mode,
    host_weights: BTreeMap<String, Vec<f32>>,
    device_weights: DeviceWeights,
}

impl CudaMembers {
    /// No executables yet. `budget` bounds what they hold beside the shared arena, which has room for the whole
    /// device and takes only what the largest of them needs.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(
        device: &CudaDevice,
        weights: BTreeMap<String, Vec<f32>>,
        mode: Mode,
        cache: Cache,
        budget: u64,
    ) -> Result<CudaMembers> {
        Ok(CudaMembers {
            executables: ExecutableCache::new(budget),
            device: device.clone(),
            arena: SharedArena::reserve(device, device.info().total_bytes)?,
            cache,
            mode,
            host_weights: weights,
            device_weights: BTreeMap::new(),
        })
    }

    /// The executable for a case; `plan` is asked for its plan when there is none.
    ///
    /// # Errors
    /// Those of `plan`, and those of binding.
    pub fn executable<E: From<CudaError>>(
        &mut self,
        case: Case,
        plan: impl FnOnce() -> Result<Plan, E>,
    ) -> Result<&mut CudaExecutable, E> {
        if self.executables.get(case).is_some() {
            return Ok(self.executables.get_or_build(case, 0, || {
                Err(CudaError::InvalidPlan { what: format!("the executable for {case} has vanished") })
            })?);
        }
        let plan = Arc::new(plan()?);
        let needed = bytes_needed(&plan, true)?;
        let CudaMembers { executables, device, arena, cache, mode, host_weights, device_weights } = self;
        Ok(executables.get_or_build(case, needed, || {
            if *mode == Mode::Frozen {
                // Most are read once, at bind, and freed then.
                let weights = upload_weights(device, &plan, host_weights)?;
                let options = BindOptions { mode: *mode, arena: Some(Arc::clone(arena)), cache: cache.clone() };
                return CudaExecutable::bind(device, Arc::clone(&plan), weights, options);
            }
            let missing = host_weights.iter().filter(|(name, _)| !device_weights.contains_key(*name));
            let missing: BTreeMap<String, Vec<f32>> =
                missing.map(|(name, values)| (name.clone(), values.clone())).collect();
            for (name, values) in missing {
                let buffer = DeviceBuffer::from_f32(device, &values, &name)?;
                device_weights.insert(name, Arc::new(buffer));
            }
            let options = BindOptions { mode: *mode, arena: Some(Arc::clone(arena)), cache: cache.clone() };
            CudaExecutable::bind(device, Arc::clone(&plan), device_weights.clone(), options)
        })?)
    }

    /// Bytes of the arena that all members share.
    pub fn arena_bytes(&self) -> u64 {
        self.arena.mapped_bytes()
    }

    /// The cases there are executables for, the least recently used first.
    pub fn cases(&self) -> impl Iterator<Item = Case> {
        self.executables.cases()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    /// A member whose size can change, and which counts itself while it is alive.
    struct Weight {
        bytes: Cell<u64>,
        alive: Rc<Cell<u64>>,
    }

    impl Member for Weight {
        fn bytes(&self) -> u64 {
            self.bytes.get()
        }
    }

    impl Drop for Weight {
        fn drop(&mut self) {
            self.alive.set(self.alive.get() - 1);
        }
    }

    fn case(batch: usize) -> Case {
        Case { batch, seq_len: 128 }
    }

    struct Fixture {
        cache: ExecutableCache<Weight>,
        alive: Rc<Cell<u64>>,
    }

    impl Fixture {
        fn new(budget: u64) -> Fixture {
            Fixture { cache: ExecutableCache::new(budget), alive: Rc::default() }
        }

        fn add(&mut self, batch: usize, bytes: u64) -> Result<&mut Weight> {
            let alive = Rc::clone(&self.alive);
            self.cache.get_or_build(case(batch), bytes, || {
                alive.set(alive.get() + 1);
                Ok(Weight { bytes: Cell::new(bytes), alive: Rc::clone(&alive) })
            })
        }

        fn batches(&self) -> Vec<usize> {
            self.cache.cases().map(|case| case.batch).collect()
        }
    }

    #[test]
    fn the_least_recently_used_goes_first() {
        let mut fixture = Fixture::new(100);
        for batch in [1, 2, 3] {
            fixture.add(batch, 30).unwrap();
        }
        assert!(fixture.cache.get(case(1)).is_some());
        assert_eq!(fixture.batches(), [2, 3, 1]);
        fixture.add(4, 30).unwrap();
        assert_eq!(fixture.batches(), [3, 1, 4]);
        fixture.add(3, 0).unwrap();
        assert_eq!((fixture.batches(), fixture.cache.bytes()), (vec![1, 4, 3], 90), "a hit builds nothing");
        fixture.add(5, 70).unwrap();
        assert_eq!((fixture.batches(), fixture.cache.bytes(), fixture.alive.get()), (vec![3, 5], 100, 2));
    }

    #[test]
    fn what_exceeds_the_budget_alone_is_refused_and_evicts_nothing() {
        let mut fixture = Fixture::new(100);
        fixture.add(1, 60).unwrap();
        let error = fixture.add(2, 101).err().unwrap();
        assert_eq!(error, CudaError::OverBudget { key: "2 x 128".to_owned(), needed: 101, budget: 100 });
        assert_eq!(fixture.batches(), [1]);
    }

    #[test]
    fn members_that_grow_push_others_out_at_the_next_use() {
        let mut fixture = Fixture::new(100);
        for batch in [1, 2, 3] {
            fixture.add(batch, 30).unwrap();
        }
        fixture.cache.get(case(2)).unwrap().bytes.set(60);
        fixture.add(2, 0).unwrap();
        assert_eq!(fixture.batches(), [3, 2]);
        fixture.cache.get(case(2)).unwrap().bytes.set(1000);
        fixture.add(2, 0).unwrap();
        assert_eq!(fixture.batches(), [2], "the one in use stays");
    }

    #[test]
    fn a_device_that_is_full_costs_members_before_it_is_an_error() {
        let mut fixture = Fixture::new(1000);
        for batch in [1, 2, 3] {
            fixture.add(batch, 10).unwrap();
        }
        let alive = Rc::clone(&fixture.alive);
        let build = || {
            if alive.get() > 1 {
                return Err(CudaError::OutOfMemory { what: "the arena".to_owned(), needed: 10, free: 0 });
            }
            alive.set(alive.get() + 1);
            Ok(Weight { bytes: Cell::new(10), alive: Rc::clone(&alive) })
        };
        fixture.cache.get_or_build(case(4), 10, build).unwrap();
        assert_eq!(fixture.batches(), [3, 4]);
        let never = || Err(CudaError::OutOfMemory { what: "the arena".to_owned(), needed: 10, free: 0 });
        let error = fixture.cache.get_or_build(case(5), 10, never).err().unwrap();
        assert!(matches!(error, CudaError::OutOfMemory { .. }));
        assert_eq!(fixture.alive.get(), 0);
    }
}
