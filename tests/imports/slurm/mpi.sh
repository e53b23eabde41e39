#!/bin/bash
#SBATCH --ntasks=6
#SBATCH --nodes=2-4
#SBATCH --dependency=afterok:123
#SBATCH --constraint=skylake
#SBATCH --switches=1
mpirun ./solve
